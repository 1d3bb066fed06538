"""Computes the figures of evaluations and reports them as tables, as JSON or as an HTML page."""
