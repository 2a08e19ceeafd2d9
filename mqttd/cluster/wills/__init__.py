"""Wills where other nodes find them."""
