"""Tests of tests/unit/broker."""
