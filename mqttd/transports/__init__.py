"""The Twisted edge: sockets, listeners, and the epoll engine below them."""
