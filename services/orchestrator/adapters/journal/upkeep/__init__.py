"""What keeps the journal small: the purge of what is old, and a watch on free space."""
