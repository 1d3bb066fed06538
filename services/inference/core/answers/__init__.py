"""Reads answers: content, reasoning and tool calls."""
