"""Sessions that outlive their node: stores copied to JetStream, and taken over from there."""
