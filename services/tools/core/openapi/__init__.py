"""Translates OpenAPI documents: the operations that can be tools, and the reasons why others cannot."""
