"""Between `pagantic.orchestrator.v1` and the core's types."""
