"""What the protocol calls things and what the system calls them: arguments, results, progress, failures."""
