"""The hook points, and who listens at each."""
