"""Searches the chunks of a collection by terms and vectors, with fusion of both, filters and diversity."""
