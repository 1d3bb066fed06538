"""Wakes waiters after a commit, directly in this process and by NOTIFY in other processes."""
