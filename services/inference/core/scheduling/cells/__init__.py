"""What is done with the cells of the engine's KV cache, and which of them are stored outside the process."""
