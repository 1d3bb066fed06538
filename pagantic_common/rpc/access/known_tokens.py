"""Caches the callers of signed tokens, because checking a signature costs more than the rest of a short call."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pagantic_common.domain.calls.principal import Principal

MAX_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class _Known:
    principal: Principal
    expires_at: float
    keys: object


class KnownTokens:
    """The most recently checked tokens, keyed by their text."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def find(self, credentials: str, keys: object, now_s: float) -> Principal | None:
        """Return the caller of a token, or None if the token is unknown or has expired at `now_s`.

        The token must have been valid under the same `keys` object.
        """
        entry = self._known.get(credentials)
        if entry is None or entry.keys is not keys or entry.expires_at <= now_s:
            return None
        return entry.principal

    def keep(self, credentials: str, keys: object, principal: Principal, expires_at: float) -> None:
        """Add a valid token."""
        self._known[credentials] = _Known(principal, expires_at, keys)
        self._known.move_to_end(credentials)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
