"""Puts the context service together."""
