"""Records the events of an execution and shows them to watchers."""
