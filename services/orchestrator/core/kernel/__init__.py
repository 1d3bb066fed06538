"""The kernel of executions: commands and answers, independent of a machine's purpose."""
