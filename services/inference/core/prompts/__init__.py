"""What a model is given: chats, tools, and no control texts of callers."""
