"""Between `pagantic.common.v1` and the domain: total and without policy."""
