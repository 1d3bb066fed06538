"""Between `pagantic.inference.v1` and the core's types."""
