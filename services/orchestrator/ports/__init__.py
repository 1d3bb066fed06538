"""What the app needs: other services, and storage."""
