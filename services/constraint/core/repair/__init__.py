"""Mends outputs: text that is nearly JSON, keys given twice, enum values in another case."""
