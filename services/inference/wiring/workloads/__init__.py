"""Loads one model of each kind, and puts the work on it together."""
