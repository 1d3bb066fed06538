"""The machine of a request. Each module has phases with their commands, answers and transitions."""
