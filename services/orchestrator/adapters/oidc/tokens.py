"""Identifies callers by the tokens of identity providers, and all other callers by their API keys."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import httpx
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import KeySet
from pydantic_core import from_json

from pagantic_common.domain.calls.principal import MAX_SUBJECT, Principal, PrincipalKind, Scope
from pagantic_common.domain.errors import ErrorCode, Unauthenticated
from pagantic_common.domain.ids import is_id
from pagantic_common.rpc.access.gate import Authenticator
from pagantic_common.rpc.access.known_tokens import KnownTokens
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.adapters.oidc.issuer_keys import IssuerKeys
from services.orchestrator.ports.identity import Issuer

# Only asymmetric algorithms: with a symmetric algorithm, an attacker could use the issuer's public key as the secret.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
TYPES = ("", "JWT", "AT+JWT", "APPLICATION/AT+JWT")  # RFC 9068; excludes logout tokens and tenant tokens
LEEWAY_S = 30
MAX_TOKEN_BYTES = 8 * 1024
SCOPE_PREFIX = "pagantic:"
CLAIMED = frozenset(Scope) - {Scope.ADMIN}  # ADMIN spans all tenants, so a tenant's provider must not grant it.
_BEARER = "bearer "

log = get_logger(__name__)


class KeySource(Protocol):
    """Supplies the public keys of an issuer."""

    async def keys_for(self, key_id: str | None) -> KeySet:
        """Return the keys. Raises Unavailable if there are no usable keys."""


class OidcTokens:
    """An Authenticator that identifies callers by a JSON Web Token (RFC 7519).

    Args:
        issuers: The accepted issuers by URL, with their keys.
        otherwise: Authenticates callers with other credentials.
        now_s: Returns the seconds since 1970.
    """

    def __init__(
        self,
        issuers: Mapping[str, tuple[Issuer, KeySource]],
        otherwise: Authenticator,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._issuers = issuers
        self._otherwise = otherwise
        self._now_s = now_s
        self._known = KnownTokens()
        self._claims = {url: _claims_of(url, issuer, now_s) for url, (issuer, _) in issuers.items()}

    async def authenticate(self, credentials: str) -> Principal:
        """Return the caller. The reason for a rejection appears only in the log.

        Raises Unauthenticated if the token is rejected, and Unavailable if the issuer's keys cannot be fetched.
        """
        text = credentials[len(_BEARER) :].strip()
        if not credentials.lower().startswith(_BEARER) or text.count(".") != 2:  # noqa: PLR2004 - the parts of a JWT
            return await self._otherwise.authenticate(credentials)
        if len(text) > MAX_TOKEN_BYTES:
            raise _refused("it is too long")
        url, key_id = _read_unverified(text)
        if url not in self._issuers:
            raise _refused("its issuer is not in OIDC_ISSUERS")
        issuer, source = self._issuers[url]
        keys = await source.keys_for(key_id)
        principal = self._known.find(credentials, keys, self._now_s() - LEEWAY_S)
        if principal is None:
            claims = self._check(text, url, keys)
            principal = _principal_of(claims, issuer)
            self._known.keep(credentials, keys, principal, float(claims["exp"]))
        return principal

    def _check(self, text: str, url: str, keys: KeySet) -> dict[str, Any]:
        try:
            token = jwt.decode(text, keys, algorithms=list(ALGORITHMS))
            self._claims[url].validate(token.claims)
        except ExpiredTokenError:
            log.warning("a token was refused", reason="it has expired")
            raise Unauthenticated("the token has expired: get another one", code=ErrorCode.AUTH_EXPIRED) from None
        except (JoseError, ValueError, TypeError) as error:
            raise _refused(f"{type(error).__name__}: {error}") from None
        if str(token.header.get("typ", "")).upper() not in TYPES:
            raise _refused("it is a token of another type")
        return token.claims


@asynccontextmanager
async def knowing_tokens(issuers: Mapping[str, Issuer], otherwise: Authenticator) -> AsyncIterator[Authenticator]:
    """Yield an authenticator that also accepts tokens of the issuers. Their keys are fetched on the first token."""
    if not issuers:
        yield otherwise
        return
    async with httpx.AsyncClient(follow_redirects=False) as client, AsyncExitStack() as stack:
        trusted_issuers: dict[str, tuple[Issuer, KeySource]] = {}
        for url, issuer in issuers.items():
            source = IssuerKeys(url, client)
            stack.push_async_callback(source.close)
            trusted_issuers[url] = (issuer, source)
        yield OidcTokens(trusted_issuers, otherwise)


def _claims_of(url: str, issuer: Issuer, now_s: Callable[[], float]) -> jwt.JWTClaimsRegistry:
    return jwt.JWTClaimsRegistry(
        now=lambda: int(now_s()),
        leeway=LEEWAY_S,
        iss={"essential": True, "value": url},
        aud={"essential": True, "value": issuer.audience},
        exp={"essential": True},
        sub={"essential": True},
    )


def _read_unverified(text: str) -> tuple[str, str | None]:
    """Return the issuer and the key id in a token, before its signature is verified."""
    try:
        parts = jws.extract_compact(text.encode())
        claims, key_id = from_json(parts.payload), parts.headers().get("kid")
    except (JoseError, ValueError, TypeError, AttributeError):  # The header may be any JSON value.
        raise _refused("it cannot be read") from None
    if not isinstance(claims, dict) or not isinstance(claims.get("iss"), str):
        raise _refused("it names no issuer")
    if key_id is not None and not isinstance(key_id, str):
        raise _refused("its key id is no text")
    return claims["iss"], key_id


def _principal_of(claims: dict[str, Any], issuer: Issuer) -> Principal:
    tenant = issuer.tenant or claims.get(issuer.tenant_claim)
    if not isinstance(tenant, str) or not is_id(tenant):
        raise _refused(f"its claim {issuer.tenant_claim!r} is not the name of a tenant")
    if not issuer.speaks_for(tenant):
        raise _refused(f"its issuer does not speak for tenant {tenant!r}: name the tenant in OIDC_ISSUERS")
    name = claims["sub"]
    if not isinstance(name, str) or not name or not name.isprintable():
        raise _refused("its subject is empty or not printable")
    subject = f"{claims['iss']}#{name}"  # Two issuers may use the same name for different people.
    if len(subject) > MAX_SUBJECT:
        raise _refused("its issuer and subject are too long")
    scopes = issuer.scopes or _scopes_of(claims.get(issuer.scope_claim))
    return Principal(tenant, subject, PrincipalKind.TOKEN, scopes, expires_at=float(claims["exp"]))


def _scopes_of(claim: object) -> frozenset[Scope]:
    names = claim
    if isinstance(claim, str):
        names = claim.split()
    if not isinstance(names, list):
        return frozenset()
    return frozenset(scope for scope in CLAIMED if f"{SCOPE_PREFIX}{scope}" in names)


def _refused(reason: str) -> Unauthenticated:
    log.warning("a token was refused", reason=reason)
    return Unauthenticated("the credentials are not valid: send a valid token")
