"""The console: a page for chats and executions that calls the native API as any other client does."""
