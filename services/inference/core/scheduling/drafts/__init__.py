"""Drafts that a smaller model guesses: its sequences, its batches, and whether they pay."""
