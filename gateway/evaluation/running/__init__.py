"""Runs a suite: sends its cases side by side, scores the answers, and keeps each result before the next."""
