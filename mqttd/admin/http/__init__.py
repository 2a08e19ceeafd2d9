"""Requests of the HTTP interface: who asks, what it may, which route serves it, the answer."""
