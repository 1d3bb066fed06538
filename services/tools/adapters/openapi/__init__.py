"""Creates tools from the operations of HTTP APIs that OpenAPI documents describe."""
