"""Models that other engines serve, and routes over models: outgoing requests and incoming answers."""
