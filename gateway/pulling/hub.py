"""Finds models on a hub with the package huggingface_hub, but downloads the file itself, so that it can resume."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import httpx2
from huggingface_hub import HfFileMetadata, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from gateway.pulling.failures import of_status, unavailable
from gateway.pulling.http_file import HttpFile, shown_url
from gateway.pulling.source import Offer, Report
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PermissionDenied

PREFIX = "hf:"
_REFERENCE = re.compile(r"hf:(?P<repo>[^/@\s]+/[^/@\s]+)/(?P<file>[^@\s]+?)(?:@(?P<revision>[^\s]+))?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubSource:
    """A file in a repository, `hf:owner/repo/file.gguf[@revision]`. Raises InvalidRequest for any other form.

    The token is found by huggingface_hub: in HF_TOKEN, or in the file of `hf auth login`.
    """

    def __init__(self, reference: str, endpoint: str, silence_s: float) -> None:
        matched = _REFERENCE.fullmatch(reference)
        if matched is None or ".." in matched["file"].split("/"):
            raise InvalidRequest(f"{reference[:200]!r}: a file of a hub is hf:owner/repo/file.gguf or …@revision")
        self._repo, self._path = matched["repo"], matched["file"]
        self._revision = matched["revision"] or "main"
        self._endpoint = endpoint or None
        self._silence_s = silence_s

    @property
    def default_name(self) -> str:
        """The file's name without its suffix."""
        return PurePosixPath(self._path).stem

    def offer(self) -> Offer:
        """Query the hub, which knows the SHA-256 only of large files."""
        metadata = self._ask()
        sha256 = (metadata.etag or "").lower()
        if not _SHA256.fullmatch(sha256):
            sha256 = ""
        if metadata.size is None:
            raise unavailable(f"{self._at(self._revision)}: the hub does not say how large the file is")
        return Offer(self._at(metadata.commit_hash or self._revision), metadata.size, sha256)

    def read(self, offer: Offer, start: int, scratch: Path, report: Report) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the content of the offered commit from a byte onwards."""
        headers = {}
        if token := get_token():
            headers["Authorization"] = f"Bearer {token}"
        url = self._url(offer.source.rpartition("@")[2])
        return HttpFile(url, self._silence_s, _Downgrades(url), headers).read(start)

    def _ask(self) -> HfFileMetadata:
        with self._explaining():
            return get_hf_file_metadata(
                self._url(self._revision), timeout=self._silence_s, library_name="pagantic", endpoint=self._endpoint
            )

    def _url(self, revision: str) -> str:
        with self._explaining():
            return hf_hub_url(self._repo, self._path, revision=revision, endpoint=self._endpoint)

    def _at(self, revision: str) -> str:
        return f"{PREFIX}{self._repo}/{self._path}@{revision}"

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        what = self._at(self._revision)
        try:
            yield
        except HFValidationError as error:
            raise InvalidRequest(f"{what}: {str(error).lower()}") from None
        except HfHubHTTPError as error:
            raise of_status(error.response.status_code, what) from None
        except (httpx2.HTTPError, OSError) as error:
            raise unavailable(f"{what}: {str(error).lower() or type(error).__name__}") from None


class _Downgrades:
    """Refuses a redirect from an encrypted hub to an address that is not encrypted."""

    def __init__(self, url: str) -> None:
        self._is_encrypted = url.startswith("https:")

    def __call__(self, url: httpx2.URL) -> None:
        if self._is_encrypted and url.scheme != "https":
            raise PermissionDenied(
                f"the hub redirects to {shown_url(str(url))}, which is not encrypted",
                code=ErrorCode.CONFIG_SOURCE_DENIED,
            )
