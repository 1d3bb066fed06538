"""Pure comparisons of two evaluations, case by case, and the gate that decides whether an evaluation passes."""
