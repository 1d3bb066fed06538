"""Pulls models from their sources into the models folder."""
