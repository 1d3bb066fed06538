"""Tokens for servers that require them, from the client's own credentials: there is no user to log in."""

from __future__ import annotations

import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from services.tools.core.servers import HttpTransport


class TokensInMemory:
    """Keeps tokens until the session ends."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Return the newest tokens."""
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep tokens."""
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client's registration."""
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the client's registration."""
        self._client = client_info


def credentials_auth(http: HttpTransport) -> httpx2.Auth | None:
    """Return the authentication that gets tokens for a server; None without credentials."""
    credentials = http.credentials
    if credentials is None:
        return None
    return ClientCredentialsOAuthProvider(
        http.url,
        TokensInMemory(),
        credentials.client_id,
        credentials.client_secret,
        scope=credentials.scope,
        issuer=credentials.issuer,
    )
