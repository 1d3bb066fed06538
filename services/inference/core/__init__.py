"""Pure rules of generation: sampling, stopping, tool calls. No engine, no clock, no thread."""
