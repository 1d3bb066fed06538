"""The files and the language that prompts are made with."""
