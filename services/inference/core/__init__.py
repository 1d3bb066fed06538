"""Pure rules of generation, such as sampling, stopping and tool calls, without an engine, a clock or threads."""
