"""Adapters that connect the tools service to built-in tools, functions, MCP servers and HTTP APIs."""
