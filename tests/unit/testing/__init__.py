"""Tests of what plugin authors test with."""
