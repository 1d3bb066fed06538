"""Suites: cases from files or recorded executions, and the requests made from them."""
