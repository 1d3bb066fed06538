"""Comparisons of two evaluations, case by case, and the gate that they pass or not. Pure."""
