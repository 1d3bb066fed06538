"""Rules about calls: the calls that a service makes, and the calls and callers that a server accepts."""
