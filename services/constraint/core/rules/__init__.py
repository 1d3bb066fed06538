"""Rules over an output: built-in kinds and CEL expressions."""
