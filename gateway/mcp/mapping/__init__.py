"""Maps the protocol's terms to the system's terms: arguments, results, progress and failures."""
