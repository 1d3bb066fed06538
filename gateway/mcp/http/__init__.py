"""The streamable HTTP transport: who may come in, with how much, for how long, and which session is whose."""
