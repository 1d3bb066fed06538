"""Mends outputs: text that is nearly JSON, repeated keys, enum values in another case."""
