"""Models by name: the catalog, the folder of pulled models, and the metadata in a model file."""
