"""The services, each a process of its own."""

import os

# gRPC's own log goes to stderr as it is, with what peers send in it: a caller could write lines into a service's log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
