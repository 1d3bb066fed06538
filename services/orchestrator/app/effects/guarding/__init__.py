"""The guards of a deployment read what goes in and out of an execution."""
