"""What an answer says: content, reasoning, tool calls."""
