"""Plans: planners, checks, the order of steps, and results."""
