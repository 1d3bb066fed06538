"""Files and folders that an operator gives, read at the start."""
