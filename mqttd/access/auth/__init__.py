"""The authentication chain and the modules in it."""
