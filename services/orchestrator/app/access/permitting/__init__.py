"""Restricts the services to the operations that the operator's policies permit to each tenant."""
