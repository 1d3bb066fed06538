"""Rules about calls: the calls made by a service, and the callers and calls accepted by a server."""
