"""Chooses the tokens of each step, and keeps computed ones for later requests."""
