"""Checks outputs against rules: built-in kinds and CEL expressions."""
