"""Evaluations: cases sent through the ordinary API, scores of the answers, and comparisons of the scores."""
