"""Migrations from each version of the collections' tables to the next."""
