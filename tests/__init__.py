"""The test suite: see CONTRIBUTING.md for its parts."""
