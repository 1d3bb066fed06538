"""Chooses the tokens of each step, and keeps computed tokens for later requests."""
