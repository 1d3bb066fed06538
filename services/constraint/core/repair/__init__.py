"""Repairs outputs: text that is nearly JSON, repeated keys, and enum values whose case is wrong."""
