"""Models that other engines serve, and routes over several models."""
