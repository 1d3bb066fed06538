"""Limits call rates, reads the operator's key files, and decides by Cedar policies."""
