"""Reads a file over HTTP from any byte on, through redirects that the caller allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

import httpx2

from gateway.pulling.failures import of_status, unavailable
from pagantic_common.domain.errors import InvalidRequest

MAX_REDIRECTS = 5
# Checks the address of each request, of redirects too; raises PaganticError.
CheckUrl = Callable[[httpx2.URL], None]


class HttpFile:
    """A file at a URL.

    Args:
        url: Its address.
        silence_s: Longest silence of the server.
        check_url: Checks each address.
        headers: Sent with each request; credentials go to the host of `url` alone.

    Attributes:
        shown: The address without secrets, to show and store.
    """

    def __init__(
        self, url: str, silence_s: float, check_url: CheckUrl, headers: Mapping[str, str] | None = None
    ) -> None:
        self._url = url
        self.shown = shown_url(url)
        self._silence_s = silence_s
        self._check_url = check_url
        # A compressed answer would count other bytes than the file has.
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}

    def size_bytes(self) -> int:
        """Return the size that the server reports; raises Unavailable for a server that reports no size."""
        with self._connected() as client:
            response = client.head(self._url)
            if not response.is_success:
                raise of_status(response.status_code, self.shown)
        length = response.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise unavailable(f"{self.shown}: the server does not say how large the file is")
        return int(length)

    def read(self, start: int) -> Iterator[bytes]:
        """Yield the content from a byte on; a server without ranges sends the content before that byte, too."""
        headers = {}
        if start:
            headers["Range"] = f"bytes={start}-"
        with self._connected() as client, client.stream("GET", self._url, headers=headers) as response:
            if not response.is_success:
                raise of_status(response.status_code, self.shown)
            skipped = start
            if response.status_code == HTTPStatus.PARTIAL_CONTENT:
                _check_range(response, start, self.shown)
                skipped = 0
            for block in response.iter_bytes():
                if wanted := block[skipped:]:
                    yield wanted
                skipped = max(0, skipped - len(block))

    @contextmanager
    def _connected(self) -> Iterator[httpx2.Client]:
        def check(request: httpx2.Request) -> None:
            self._check_url(request.url)

        try:
            with httpx2.Client(
                headers=self._headers,
                timeout=self._silence_s,
                follow_redirects=True,
                max_redirects=MAX_REDIRECTS,
                event_hooks={"request": [check]},
            ) as client:
                yield client
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error).lower() or type(error).__name__
            raise unavailable(f"{self.shown}: {reason}") from None


def shown_url(url: str) -> str:
    """Return a URL without its user and query, which may be secret; raises InvalidRequest for an invalid URL."""
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise InvalidRequest(f"it is no URL: {str(error).lower()}") from None
    return str(parts.copy_with(username=None, password=None, query=None, fragment=None))


def _check_range(response: httpx2.Response, start: int, url: str) -> None:
    given = response.headers.get("Content-Range", "")
    if not given.startswith(f"bytes {start}-"):
        raise unavailable(f"{url}: asked for the bytes from {start} on, the server sends {given[:80]!r}")
