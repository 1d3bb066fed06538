"""Shows the work of executions as spans and metrics; knows nothing of collectors."""
