"""Measurements of the broker: `python -m benchmarks` beside its peers, `.topic` and `.profile`."""

__all__: list[str] = []
