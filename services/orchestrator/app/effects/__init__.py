"""What a run asks for, carried out: a function for each command."""
