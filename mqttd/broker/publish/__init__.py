"""A message on its way, and what subscribes to it."""
