"""Records what happens to an execution, and shows it."""
