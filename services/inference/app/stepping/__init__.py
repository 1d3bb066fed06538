"""What the engine's loop does before it decodes a step: operations on cells, and drafts of a draft model."""
