"""What operators see of a broker, as values that are made when they are asked for."""
