"""Migrations between versions of the journal's tables."""
