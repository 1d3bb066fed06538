"""Parses answers into content, reasoning and tool calls."""
