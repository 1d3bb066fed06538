"""Rules about calls: which calls of a service are made, which calls a server takes, and from whom."""
