"""Runs a suite: sends its cases in parallel, scores the answers, and stores each result before it continues."""
