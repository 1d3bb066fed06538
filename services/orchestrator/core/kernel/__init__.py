"""The kernel of executions: the commands and the lifecycle of a machine, whatever the machine does."""
