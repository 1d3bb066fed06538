"""Models that other engines serve, and routes over models: requests as they go out, answers as they come in."""
