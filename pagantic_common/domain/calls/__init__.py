"""Rules about calls: which calls of a service are made, and which calls a server takes."""
