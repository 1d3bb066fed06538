"""The machine of a request: each module has phases with their commands, the answers to these, and what follows."""
