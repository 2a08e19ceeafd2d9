"""The conformance suite: raw bytes over a socket, one file per chapter of the checklist."""
