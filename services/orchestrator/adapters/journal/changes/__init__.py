"""Wakes waiters after a commit, directly in this process and through NOTIFY in other processes."""
