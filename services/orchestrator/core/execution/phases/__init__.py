"""The phases of an execution: each module handles the inputs of one phase."""
