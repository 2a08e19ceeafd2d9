"""Tests of tests/unit/access."""
