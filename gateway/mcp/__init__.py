"""The Model Context Protocol server: tools, documents and prompts of a deployment for any client of the protocol."""
