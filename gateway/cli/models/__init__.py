"""Commands for models in the catalog, for pulled models, and for models that a system serves."""
