"""What wakes those who wait for a commit: of this process, and by NOTIFY of others."""
