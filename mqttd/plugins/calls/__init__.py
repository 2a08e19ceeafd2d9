"""How plugins are called: at hooks, in threads, by what budget, with what crosses to a process."""
