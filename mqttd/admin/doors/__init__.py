"""The doors of the HTTP interface: a Unix socket, TCP, the page, and what is let in by them."""
