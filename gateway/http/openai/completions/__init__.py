"""`/v1/completions`: continues raw texts, whole and as streams."""
