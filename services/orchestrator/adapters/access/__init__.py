"""Who callers are, how often they may call, and what they may use."""
