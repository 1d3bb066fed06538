"""The services, each a process of its own."""

import gc
import os

# gRPC's own log goes to stderr as it is, with what peers send in it: a caller could write lines into a service's log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# Modules and calls create few reference cycles. Collection at Python's default thresholds takes a tenth of the time of
# a start, and a quarter of the time of a call.
gc.set_threshold(20_000, 20, 20)
