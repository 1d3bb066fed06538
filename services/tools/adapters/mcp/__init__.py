"""Connects to Model Context Protocol servers with the official SDK and additional limits."""
