"""What every part of a broker stands on: clock, turns, seams, settings, the log's lines."""
