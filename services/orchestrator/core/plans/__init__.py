"""Plans: who makes them, which steps run next, what comes of them."""
