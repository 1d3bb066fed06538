"""Rules for models of other engines and for routes over models: outgoing requests and incoming answers."""
