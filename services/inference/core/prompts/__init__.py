"""Writes prompts: conversations, tools, and no control tokens from callers."""
