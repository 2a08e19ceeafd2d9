"""Measurements of the broker: `python -m benchmarks` beside its peers; README.md has them all."""

__all__: list[str] = []
