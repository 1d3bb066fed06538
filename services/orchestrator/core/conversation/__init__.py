"""The conversation as part of the model's prompt."""
