"""The protocol machine of a connection: packets out of bytes, each handed to whom it concerns."""
