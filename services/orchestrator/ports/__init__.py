"""The ports of the app: other services, and storage."""
