"""Fuzzers, each a module to run: ``python -m fuzz.codec --executions 1000000 --seed 1``."""
