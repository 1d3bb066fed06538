"""The inference service over gRPC: its port, and the choice among its replicas."""
