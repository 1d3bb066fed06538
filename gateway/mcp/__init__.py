"""Serves the tools, documents and prompts of a deployment to any client of the Model Context Protocol."""
