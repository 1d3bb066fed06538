"""`pagantic init`: its questions, its choices, and the settings file that it writes."""
