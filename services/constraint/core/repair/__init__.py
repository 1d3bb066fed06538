"""Repairs outputs: text that is nearly JSON, repeated keys, and enum values in the wrong case."""
