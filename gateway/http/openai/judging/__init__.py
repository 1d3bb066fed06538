"""Judgements on texts: decisions and moderations."""
