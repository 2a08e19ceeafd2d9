"""The links between nodes: who is let in, by what certificate, and what goes over them."""
