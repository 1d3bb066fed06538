"""Runs work on callers' sources in processes that are limited in time and memory and can be killed."""
