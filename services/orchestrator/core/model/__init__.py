"""The domain types of a request and its response, with their checks."""
