"""Connects to Model Context Protocol servers with the official SDK, behind additional limits."""
