"""Logs, traces, the clock, and the scope of the work at hand: its correlation and its deadline."""
