"""Handles model files: the catalog of models, the folder of pulled models, and the metadata in a file."""
