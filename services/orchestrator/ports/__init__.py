"""The ports of the app to other services and to storage."""
