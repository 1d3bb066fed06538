"""Tracks visits: a visit is an HTTP request while it is served. Its work ends when the client disconnects.

Up to version 2025-11-25, the protocol lets work continue after a broken stream, for a client that returns for the
rest. This server does not store the rest, so such work would be wasted.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import anyio
from starlette.requests import Request

_KEY = "pagantic.visit"


class Visit:
    """Tracks the work that runs for a request."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._is_over = False

    def enter(self, scope: MutableMapping[str, Any]) -> None:
        """Attach the visit to the scope of its request."""
        scope[_KEY] = self

    def leave(self) -> None:
        """End the visit, and cancel the work that is still running for it."""
        self._is_over = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Run a block that is cancelled when the client disconnects. The rest of the block is then skipped."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._is_over:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)


def visit_of(request: Request | None) -> Visit:
    """Return the visit of a request. Without a request, as over stdio, return a new visit that never ends."""
    if request is None:
        return Visit()
    visit: Visit = request.scope.get(_KEY) or Visit()
    return visit
