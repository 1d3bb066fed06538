"""`/v1/completions`: continues raw texts, as complete answers or streams."""
