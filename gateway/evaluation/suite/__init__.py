"""Suites: cases from files or from recorded executions, and the requests that they become."""
