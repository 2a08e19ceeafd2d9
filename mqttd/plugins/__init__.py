"""Plugins: found on the path, loaded into the running broker, taken out of it without a trace."""
