"""Roles with rules, groups of them, and who has which."""
