"""Who has a client id, of all nodes, and sessions on their way from one node to another."""
