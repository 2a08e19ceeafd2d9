"""The event log on disk: its format, its writer, its reader. Standard library only."""
