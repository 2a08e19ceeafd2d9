"""From a topic's bytes to its route, looked up once for everybody."""
