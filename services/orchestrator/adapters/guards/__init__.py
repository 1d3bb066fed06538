"""The guards that ship, found by entry point as those of other packages are, and the processes in which they run."""
