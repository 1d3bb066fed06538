"""Implements prompt templates, image encoding, and the files that hold shared prompts and cached cells."""
