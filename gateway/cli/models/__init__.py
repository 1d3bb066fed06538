"""Commands for models: in the catalog, pulled, and served by a system."""
