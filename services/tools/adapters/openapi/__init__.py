"""Makes tools of the operations of HTTP APIs from OpenAPI documents."""
