"""TLS from files: certificates that are renewed while the service runs, and the services permitted to call."""
