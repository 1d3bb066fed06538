"""`/v1/chat/completions`: answers to chats, complete, streamed or stored."""
