"""What transports, admin and clients share of the network: sockets, addresses, TLS."""
