"""What the broker says about itself: `$SYS` topics."""
