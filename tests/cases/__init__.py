"""Tables of cases that several tests read."""
