"""`/v1/chat/completions`: answers to chats, whole and as streams, and those that are stored."""
