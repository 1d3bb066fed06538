"""Judgements of texts: decisions and moderations."""
