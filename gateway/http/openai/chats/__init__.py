"""`/v1/chat/completions`: answers to chats, whole, as streams, and stored."""
