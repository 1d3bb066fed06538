"""Turns prompts into tokens, and requests into work for the engine's loop."""
