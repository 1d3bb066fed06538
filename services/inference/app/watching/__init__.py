"""Looks at the models while they work: for callers that choose a replica, and for one that is stuck."""
