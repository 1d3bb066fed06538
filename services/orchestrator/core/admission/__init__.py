"""What a request may spend, and which variant of an experiment it gets."""
