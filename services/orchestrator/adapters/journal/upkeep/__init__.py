"""Keeps the journal small: purges old rows and watches the free space."""
