"""Per-client state, sans-I/O: the channel of a connection, the session behind it, messages."""
