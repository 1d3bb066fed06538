"""Tools for the operations of HTTP APIs, from OpenAPI documents."""
