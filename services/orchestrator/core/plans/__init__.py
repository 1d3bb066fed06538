"""Makes and checks plans, decides the order of their steps, and selects their results."""
