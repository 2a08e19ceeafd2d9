"""What happens when things break: processes that are killed, disks that are full."""
