"""The API document: each route describes itself, and the descriptions are combined into an OpenAPI document."""
