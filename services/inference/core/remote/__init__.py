"""Rules for models that other engines serve and for routes over models: outgoing requests and incoming answers."""
