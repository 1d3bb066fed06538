"""The kernel of executions: the commands of a machine and their answers, whatever the machine does."""
