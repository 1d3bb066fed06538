"""Signs the calls that commands make directly to services behind the orchestrator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pagantic_common.client.credentials import check_privacy
from pagantic_common.domain.defaults import SIGNING_KEY, has_own_identity, path_of, state_folder

if TYPE_CHECKING:
    from pagantic_common.rpc.access.tls.calling import Target


def operator_credentials(area: str, target: Target, environment: Mapping[str, str] = os.environ) -> str:
    """Return the `authorization` for a call to a service, or an empty string if this user cannot sign.

    A service that has verifying keys refuses calls without it. Raises InvalidRequest if the token would leave this
    machine in plain text, or if the key is unusable.
    """
    path = find_signing_key(environment)
    if path is None:
        return ""
    check_privacy(target, "a token", environment)
    return sign(area, path)


def find_signing_key(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the orchestrator's signing key if this user can read it.

    The setting names the file; its default is the file that `pagantic up` creates in the state folder.
    """
    if named := environment.get(SIGNING_KEY):
        path = path_of(SIGNING_KEY, named)
    elif has_own_identity(environment):
        path = state_folder(environment) / "identity" / "signing.pem"
    else:
        return None
    return path if os.access(path, os.R_OK) else None


def sign(area: str, path: Path, lifetime_s: float | None = None) -> str:
    """Return the `authorization` of an operator for a service, signed with the key in a file.

    Raises InvalidRequest if the key is unusable.
    """
    # Imported here, because most commands do not sign calls.
    from pagantic_common.rpc.access.tenant_tokens import LIFETIME_S, TenantTokens, read_signing_key

    return TenantTokens(read_signing_key(path)).operator_credentials(area, lifetime_s or LIFETIME_S)
