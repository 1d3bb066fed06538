"""Steps from one version of the journal's tables to the next."""
