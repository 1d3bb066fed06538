"""Evaluates a system: sends cases through the ordinary API, scores the answers, and compares the scores."""
