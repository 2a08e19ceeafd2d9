"""The memory budget, and what gives way when it is spent."""
