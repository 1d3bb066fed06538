"""The phases of an execution: each module takes the inputs of one phase."""
