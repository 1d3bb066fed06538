"""Conversion between `pagantic.orchestrator.v1` and the core's types."""
