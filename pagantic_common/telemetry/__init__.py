"""Logs, traces, clocks and correlation; `names.py` has every name that they use."""
