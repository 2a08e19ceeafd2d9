"""Who may do what: authentication and access control."""
