"""Runs work on callers' sources in processes that are bounded in time and memory and can be killed."""
