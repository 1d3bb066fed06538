"""The nouns of a request and its response, with their checks."""
