"""The interfaces through which the app uses other services and storage."""
