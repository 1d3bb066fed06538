"""What judges a text instead of continuing it: decisions and moderations."""
