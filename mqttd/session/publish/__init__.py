"""PUBLISH on its way through, a module for each gear."""
