"""The services, restricted to the operations that the operator's policies permit to each tenant."""
