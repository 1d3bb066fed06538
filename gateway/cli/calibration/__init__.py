"""Commands that fit probabilities to labels."""
