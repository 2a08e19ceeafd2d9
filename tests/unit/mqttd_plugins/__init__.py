"""Tests of the bundled plugins, in memory."""
