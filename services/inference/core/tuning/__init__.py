"""How an engine runs on a machine: chosen from measurements, and from its load."""
