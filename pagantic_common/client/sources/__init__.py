"""The client's methods for a deployment's sources of answers, and for uploading files."""
