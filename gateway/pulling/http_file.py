"""Reads a file over HTTP from any byte onwards, through allowed redirects, and pulls URLs on the operator's hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import httpx2

from gateway.pulling.failures import of_status, unavailable
from gateway.pulling.source import Offer, Report
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PermissionDenied
from pagantic_common.models.settings import HOSTS_VARIABLE

MAX_REDIRECTS = 5
# Checks the address of each request, including redirects. Raises PaganticError.
CheckUrl = Callable[[httpx2.URL], None]


class HttpFile:
    """A file at a URL.

    Args:
    url: The address of the file.
    silence_s: Maximum time for which the server may be silent.
    check_url: Checks each address.
    headers: Sent with each request. Credentials are sent only to the host of `url`.

    Attributes:
    shown: The address without secrets, for display and storage.
    """

    def __init__(
        self, url: str, silence_s: float, check_url: CheckUrl, headers: Mapping[str, str] | None = None
    ) -> None:
        self._url = url
        self.shown = shown_url(url)
        self._silence_s = silence_s
        self._check_url = check_url
        # Responses must not be compressed, because their offsets would not match the bytes of the file.
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}

    def size_bytes(self) -> int:
        """Return the size that the server reports. Raises Unavailable if the server reports no size."""
        with self._connected() as client:
            response = client.head(self._url)
            if not response.is_success:
                raise of_status(response.status_code, self.shown)
        length = response.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise unavailable(f"{self.shown}: the server does not say how large the file is")
        return int(length)

    def read(self, start: int) -> Iterator[bytes]:
        """Yield the content from a byte onwards, skipping earlier content if the server does not support ranges."""
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
                if chunk := block[skipped:]:
                    yield chunk
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
    """Return a URL without its user and query, which may be secret. Raises InvalidRequest if the URL is invalid."""
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise InvalidRequest(f"it is no URL: {str(error).lower()}") from None
    return str(parts.copy_with(username=None, password=None, query=None, fragment=None))


def _check_range(response: httpx2.Response, start: int, url: str) -> None:
    content_range = response.headers.get("Content-Range", "")
    if not content_range.startswith(f"bytes {start}-"):
        raise unavailable(f"{url}: asked for the bytes from {start} on, the server sends {content_range[:80]!r}")


class UrlSource:
    """A file at a URL. `hosts` must include every host, including the hosts of redirects."""

    def __init__(self, url: str, hosts: Collection[str], silence_s: float) -> None:
        self._url = url
        self._hosts = hosts
        self._file = HttpFile(url, silence_s, self._check)

    @property
    def default_name(self) -> str:
        """The stem of the file's name."""
        return PurePosixPath(unquote(urlsplit(self._url).path)).stem

    def offer(self) -> Offer:
        """Return an offer with the size, the only fact that the server states about the file."""
        return Offer(self._file.shown, self._file.size_bytes())

    def read(self, offer: Offer, start: int, scratch: Path, report: Report) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the content from a byte onwards."""
        return self._file.read(start)

    def _check(self, url: httpx2.URL) -> None:
        if url.scheme != "https":
            raise PermissionDenied(
                f"{shown_url(str(url))}: only https:// is taken", code=ErrorCode.CONFIG_SOURCE_DENIED
            )
        if url.host not in self._hosts:
            raise PermissionDenied(
                f"{shown_url(str(url))}: {HOSTS_VARIABLE} does not name the host {url.host!r}",
                code=ErrorCode.CONFIG_SOURCE_DENIED,
            )
