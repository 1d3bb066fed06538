"""Signs the calls that commands make directly to services behind the orchestrator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pagantic_common.client.credentials import PLAINTEXT
from pagantic_common.domain.defaults import path_of, state_folder
from pagantic_common.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from pagantic_common.rpc.access.tls.calling import Target

SIGNING_KEY = "PAGANTIC_ORCHESTRATOR_SIGNING_KEY_FILE"
_AUTH = ("PAGANTIC_ORCHESTRATOR_AUTH", "PAGANTIC_AUTH")


def operator_credentials(area: str, target: Target, environment: Mapping[str, str] = os.environ) -> str:
    """Return the `authorization` for a call to a service, or an empty string if this user cannot sign.

    A service that has verifying keys refuses calls without it. Raises InvalidRequest if the token would leave this
    machine in plain text, or if the key is unusable.
    """
    path = find_signing_key(environment)
    if path is None:
        return ""
    if not target.is_private and environment.get(PLAINTEXT) != "1":
        raise InvalidRequest(
            f"a token would be sent to {target.address} in plain text: call https://{target.address}, or set "
            f"{PLAINTEXT}=1 where a proxy or a mesh encrypts the connection"
        )
    return sign(area, path)


def find_signing_key(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the orchestrator's signing key if this user can read it.

    It is the file of the setting, or the file that `pagantic up` makes in the state folder if callers need API keys.
    """
    if named := environment.get(SIGNING_KEY):
        path = path_of(SIGNING_KEY, named)
    elif next((given for name in _AUTH if (given := environment.get(name))), "") == "keys":
        path = state_folder(environment) / "identity" / "signing.pem"
    else:
        return None
    return path if os.access(path, os.R_OK) else None


def sign(area: str, path: Path, lifetime_s: float | None = None) -> str:
    """Return the `authorization` of an operator for a service, signed with the key in a file.

    Raises InvalidRequest if the key is unusable.
    """
    # Imported here, because most commands sign nothing.
    from pagantic_common.rpc.access.tenant_tokens import LIFETIME_S, TenantTokens, read_signing_key

    return TenantTokens(read_signing_key(path)).operator_credentials(area, lifetime_s or LIFETIME_S)
