"""The document of the API: each path describes itself, and OpenAPI says it of all together."""
