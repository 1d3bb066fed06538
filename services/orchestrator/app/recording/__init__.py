"""Records the events of an execution and delivers them to watchers."""
