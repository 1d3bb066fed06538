"""Records the work of executions as spans and metrics, independently of any collector."""
