"""The data pipeline: an event log in the broker, and what reads it (docs/design/pipeline.md)."""
