"""The flow plane of one node: topics, routes, retained messages, clients and sessions."""
