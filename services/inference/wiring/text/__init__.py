"""Puts a model that generates text together: its engine, its draft model and its loop."""
