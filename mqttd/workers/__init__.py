"""Several processes as one broker: a supervisor, its workers, and the mesh between them."""
