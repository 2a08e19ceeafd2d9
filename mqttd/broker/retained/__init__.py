"""Retained messages: what is kept of one, the tree of their topics, finding them."""
