"""Logs, traces, the clock, and the scope of the current work: its correlation and its deadline."""
