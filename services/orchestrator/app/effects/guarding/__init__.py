"""Applies a deployment's guards to the inputs and outputs of an execution."""
