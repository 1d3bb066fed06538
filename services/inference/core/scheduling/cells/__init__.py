"""The cells of the KV cache: whose they are, what is done with them, and which are stored outside the process."""
