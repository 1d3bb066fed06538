"""Tenant tokens, by which the orchestrator names the tenant of a call to another service.

A token is a JWT (RFC 7519), signed with Ed25519 (RFC 9864). It names the tenant, the permissions of its bearer, and the
services that accept it, and it is valid for minutes. A service that calls another service forwards its caller's token,
so that it can work only for its own callers.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import KeySet, OKPKey

from pagantic_common.domain.calls.principal import DEFAULT_TENANT, LOCAL, Principal, PrincipalKind, Scope
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unauthenticated
from pagantic_common.domain.ids import is_id
from pagantic_common.rpc.access.known_tokens import KnownTokens
from pagantic_common.rpc.access.watched_file import WatchedFile
from pagantic_common.settings import Auth, InnerSettings
from pagantic_common.telemetry.logging import get_logger

ISSUER = "pagantic"
TYPE = "tenant+jwt"
ALGORITHM: Final = "Ed25519"
LIFETIME_S = 300.0
RENEW_S = 60.0  # A token is sent for this long. The rest of its lifetime allows it to be forwarded.
LEEWAY_S = 30  # tolerated difference between clocks
MAX_TOKEN_BYTES = 4096
MAX_SIGNED = 4096
UNSIGNED_CALL = (
    "the call has no tenant token: call the orchestrator, or have the operator's commands read its key "
    "(PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE)"
)
SERVICE_SCOPES = frozenset({Scope.EXECUTE, Scope.READ, Scope.WRITE})
# Maps each service to the services that it calls on behalf of its callers.
PASSED_ON = {"constraint": ("inference",), "context": ("inference",), "rerank": ("inference",)}
_BEARER = "Bearer "
_PEM_END = b"-----END PUBLIC KEY-----"

log = get_logger(__name__)


class TenantTokens:
    """Makes the credentials for the orchestrator's calls to other services.

    Args:
        key: Returns the current private key for signing.
        now_s: Returns the time in seconds since 1970.
    """

    def __init__(self, key: Callable[[], OKPKey], now_s: Callable[[], float] = time.time) -> None:
        self._key = key
        self._now_s = now_s
        self._signed: OrderedDict[tuple[str, str, bool], tuple[float, str]] = OrderedDict()

    def credentials(self, area: str, principal: Principal) -> str:
        """Return the `authorization` for a call to a service on behalf of the caller's tenant.

        For an operator, the service may also do work that needs the scope `admin`, such as loading a model.
        """
        is_operator = Scope.ADMIN in principal.scopes
        place, now_s = (area, principal.tenant, is_operator), self._now_s()
        signed_s, credentials = self._signed.get(place, (0.0, ""))
        if not 0 <= now_s - signed_s < RENEW_S:
            scopes = SERVICE_SCOPES | {Scope.ADMIN} if is_operator else SERVICE_SCOPES
            credentials = self._sign(area, principal.tenant, scopes, now_s)
            self._signed[place] = (now_s, credentials)
            self._signed.move_to_end(place)
            if len(self._signed) > MAX_SIGNED:
                self._signed.popitem(last=False)
        return credentials

    def operator_credentials(self, area: str, lifetime_s: float = LIFETIME_S) -> str:
        """Return the `authorization` for an operator's own calls to a service, with every scope.

        The calls belong to the tenant `default`.
        """
        return self._sign(area, DEFAULT_TENANT, frozenset(Scope), self._now_s(), lifetime_s)

    def _sign(
        self, area: str, tenant: str, scopes: frozenset[Scope], now_s: float, lifetime_s: float = LIFETIME_S
    ) -> str:
        key = self._key()
        claims = {
            "iss": ISSUER,
            "aud": [area, *PASSED_ON.get(area, ())],
            "iat": int(now_s),
            "exp": int(now_s + lifetime_s),
            "tenant": tenant,
            "scope": " ".join(sorted(scopes)),
        }
        header = {"alg": ALGORITHM, "typ": TYPE, "kid": key.thumbprint()}
        return _BEARER + jwt.encode(header, claims, key, algorithms=[ALGORITHM])


class TenantTokenReader:
    """An Authenticator that identifies callers by their tenant tokens.

    Args:
        area: The service that reads the tokens.
        keys: Returns the public keys of the orchestrators. None means that the service has no keys and rejects all
            tokens.
        is_required: Whether a call without a token is refused. If not, the caller is the local caller.
        now_s: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        area: str,
        keys: Callable[[], KeySet] | None,
        *,
        is_required: bool,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._is_required = is_required
        self._now_s = now_s
        self._known = KnownTokens()
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(now_s()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": ISSUER},
            aud={"essential": True, "value": area},
            exp={"essential": True},
            iat={"essential": True},
            tenant={"essential": True},
            scope={"essential": True},
        )

    async def authenticate(self, credentials: str) -> Principal:
        """Return the caller for the tenant that the token names, and log the reason if the token is refused."""
        if not credentials:
            if self._is_required:
                raise Unauthenticated(UNSIGNED_CALL, code=ErrorCode.AUTH_MISSING)
            return LOCAL
        if self._keys is None:
            raise _refused("VERIFYING_KEYS_FILE names no keys to check it with")
        keys = self._keys()
        principal = self._known.find(credentials, keys, self._now_s() - LEEWAY_S)
        if principal is None:
            claims = self._check(credentials, keys)
            principal = _principal_of(claims, credentials)
            self._known.keep(credentials, keys, principal, float(claims["exp"]))
        return principal

    def _check(self, credentials: str, keys: KeySet) -> dict[str, Any]:
        if not credentials.startswith(_BEARER) or len(credentials) > MAX_TOKEN_BYTES:
            raise _refused("it is not of the form of a token")
        try:
            token = jwt.decode(credentials.removeprefix(_BEARER), keys, algorithms=[ALGORITHM])
            self._claims.validate(token.claims)
        except ExpiredTokenError:
            log.warning("a tenant token was refused", reason="it has expired")
            raise Unauthenticated("the tenant token has expired", code=ErrorCode.AUTH_EXPIRED) from None
        except (JoseError, ValueError, TypeError) as error:
            raise _refused(f"{type(error).__name__}: {error}") from None
        if token.header.get("typ") != TYPE:
            raise _refused("it is a token of another type")
        return token.claims


def is_tenant_token(credentials: str) -> bool:
    """Return whether credentials claim to be a tenant token. The token may still be invalid."""
    try:
        header = jws.extract_compact(credentials.removeprefix(_BEARER).encode()).protected
    except (JoseError, ValueError):
        return False
    return header.get("typ") == TYPE


def read_signing_key(path: Path) -> Callable[[], OKPKey]:
    """Return a function that reads the private key in a PEM file. Raises InvalidRequest if the file is unusable."""
    return WatchedFile(path, "SIGNING_KEY_FILE", _parse_signing_key).content


def read_tenant_tokens(area: str, settings: InnerSettings) -> TenantTokenReader:
    """Return the authenticator of a service behind the orchestrator.

    With verifying keys, a call without a token is refused, whatever AUTH is, because the call has no tenant. Raises
    InvalidRequest if the file of verifying keys is unusable.
    """
    keys = None
    if (path := settings.verifying_keys_file) is not None:
        keys = WatchedFile(path, "VERIFYING_KEYS_FILE", _parse_verifying_keys).content
    return TenantTokenReader(area, keys, is_required=settings.auth is Auth.TOKENS or keys is not None)


def write_key_pair(folder: Path) -> tuple[Path, Path]:
    """Make a signing key and its verifying key in a folder, unless both exist, and return their paths."""
    signing, verifying = folder / "signing.pem", folder / "verifying.pem"
    if not (signing.exists() and verifying.exists()):
        key = OKPKey.generate_key(ALGORITHM)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        signing.touch(mode=0o600)
        signing.write_bytes(key.as_pem(private=True))
        verifying.write_bytes(key.as_pem(private=False))
    return signing, verifying


def _principal_of(claims: dict[str, Any], credentials: str) -> Principal:
    tenant, scopes = claims["tenant"], str(claims["scope"]).split()
    if not isinstance(tenant, str) or not is_id(tenant):
        raise _refused("its tenant is not an id")
    granted_scopes = frozenset(Scope(scope) for scope in scopes if scope in set(Scope))
    return Principal(tenant, ISSUER, PrincipalKind.SERVICE, granted_scopes, tenant_token=credentials)


def _refused(reason: str) -> Unauthenticated:
    log.warning("a tenant token was refused", reason=reason)
    return Unauthenticated("the tenant token is not valid")


def _parse_signing_key(data: bytes) -> OKPKey:
    key = _import(data)
    if not key.is_private:
        raise InvalidRequest("has only a public key: it needs the private one")
    return key


def _parse_verifying_keys(data: bytes) -> KeySet:
    parts = [part + _PEM_END for part in data.split(_PEM_END)[:-1]]
    if not parts:
        raise InvalidRequest("has no public key in PEM")
    return KeySet([_import(part.strip()) for part in parts])


def _import(data: bytes) -> OKPKey:
    try:
        key = OKPKey.import_key(data)
        is_right = key.curve_name == ALGORITHM
    except (JoseError, ValueError, TypeError):
        is_right = False
    if not is_right:
        raise InvalidRequest("does not hold an Ed25519 key in PEM")
    return key
