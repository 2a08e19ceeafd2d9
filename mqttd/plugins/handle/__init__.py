"""What a loaded plugin holds of the broker, a group of methods a module; `handle` is them all."""
