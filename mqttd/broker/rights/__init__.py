"""Who may do what, and who must stay out."""
