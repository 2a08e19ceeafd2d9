"""The edges of the broker: sockets, timers and what they need."""
