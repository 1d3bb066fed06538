"""What the paths of each API say of themselves: a table of operations for each."""
