"""Pure functions that compare two evaluations case by case and decide whether an evaluation passes the gate."""
