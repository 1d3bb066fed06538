"""Pulls models from their sources into the folder of models."""
