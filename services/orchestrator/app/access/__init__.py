"""Who may call and use what, and the record of it."""
