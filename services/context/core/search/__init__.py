"""Searches the chunks of a collection by terms and vectors, with fusion, filters and diversity."""
