"""Models that are converted once on this machine, and kept in the cache."""
