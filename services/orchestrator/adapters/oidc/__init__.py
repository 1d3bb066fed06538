"""Authenticates callers by a token of an identity provider: OpenID Connect discovery and JSON Web Tokens."""
