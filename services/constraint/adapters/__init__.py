"""Where the constraint service meets files and the engine."""
