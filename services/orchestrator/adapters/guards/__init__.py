"""The built-in guards, loaded through entry points like third-party guards, and their worker processes."""
