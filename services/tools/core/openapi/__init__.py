"""OpenAPI documents as values: the operations that can be tools, and the reasons that others cannot."""
