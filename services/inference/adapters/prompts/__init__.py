"""The files and the language that prompts are made with, and the files that keep their cells."""
