"""Reads suites of cases from files or recorded executions, and builds the requests of their cases."""
