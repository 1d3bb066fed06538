"""Tools that are operations of HTTP APIs, which OpenAPI documents describe."""
