"""Evaluations: cases sent through the ordinary door, scores of their answers, and comparisons of the scores."""
