"""A client of NATS and its JetStream, for what is kept on several machines."""
