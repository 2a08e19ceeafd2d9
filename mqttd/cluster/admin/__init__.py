"""What operators see of a cluster: nodes ask one another."""
