"""Models at https:// URLs, on hosts that the operator has allowed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import httpx2

from gateway.pulling.http_file import HttpFile, shown_url
from gateway.pulling.source import Offer, Report
from pagantic_common.domain.errors import ErrorCode, PermissionDenied
from pagantic_common.models.settings import HOSTS_VARIABLE


class UrlSource:
    """A file at a URL; each host on the way to it must be one of `hosts`."""

    def __init__(self, url: str, hosts: Collection[str], silence_s: float) -> None:
        self._url = url
        self._hosts = hosts
        self._file = HttpFile(url, silence_s, self._check)

    @property
    def default_name(self) -> str:
        """The stem of the file's name."""
        return PurePosixPath(unquote(urlsplit(self._url).path)).stem

    def offer(self) -> Offer:
        """Ask for the size; a server says nothing else about its file."""
        return Offer(self._file.shown, self._file.size_bytes())

    def read(self, offer: Offer, start: int, scratch: Path, report: Report) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the content from a byte on."""
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
