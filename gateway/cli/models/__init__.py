"""Commands for models: those of the catalog, those that were pulled, and those that a system serves."""
