"""Maps the protocol's terms to the system's: arguments, results, progress, failures."""
