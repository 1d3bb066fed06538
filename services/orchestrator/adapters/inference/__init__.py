"""The client of the inference service over gRPC, and the choice among the service's replicas."""
