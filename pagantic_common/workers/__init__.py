"""Work on what callers send, in processes that are bounded in time and memory and can be ended."""
