"""The conversation in the model's prompt."""
