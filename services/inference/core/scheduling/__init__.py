"""Which tokens of which sequences each step computes, and what is kept of them."""
