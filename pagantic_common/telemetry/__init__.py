"""Provides logs, traces, metrics, the clock, and the scope of the current work: its correlation and its deadline."""
