"""Calls an operation of an API, and converts its response to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

from pagantic_common.domain.messages import ToolDefinition, ToolFailed
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.telemetry.scope import current_effect_id
from pagantic_common.workers.fair_places import FairPlaces
from services.tools.adapters.http_guard import RequestRefused, ResponseTooLarge
from services.tools.adapters.openapi.configuration import ApiSpec
from services.tools.core.openapi.forms import Part
from services.tools.core.openapi.media_types import is_json
from services.tools.core.openapi.operations import Operation
from services.tools.core.openapi.requests import ApiRequest, build_request
from services.tools.core.remote_names import prefixed_name
from services.tools.ports import Report, ToolUnavailable

MAX_ERROR_CHARS = 1000
# A retry may succeed after these statuses (RFC 9110, RFC 6585).
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_TEXT_TYPES = ("application/xml", "application/yaml", "application/x-ndjson", "application/javascript")
_ENCODINGS = frozenset({"utf-8", "us-ascii", "iso-8859-1", "windows-1252", "utf-16"})


class OperationTool:
    """A tool that calls an operation of an API. All tools of an API share the API's places."""

    is_remote = True

    def __init__(
        self, spec: ApiSpec, operation: Operation, client: httpx2.AsyncClient, places: FairPlaces | None = None
    ) -> None:
        self.definition = ToolDefinition(
            name=prefixed_name(spec.name, operation.name),
            description=operation.description,
            parameters_json=operation.parameters_json,
            safety=operation.safety,
            idempotent=operation.is_idempotent,
            timeout_s=spec.timeout_s,
        )
        self.places = places
        self._spec = spec
        self._operation = operation
        self._client = client

    @property
    def unavailable_reason(self) -> str:
        """Always empty, because an API is not probed before a call."""
        return ""

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:  # noqa: ARG002 - there is no progress
        """Return the response as text, with JSON in compact form. Raises ToolFailed and ToolUnavailable."""
        request = build_request(self._operation, arguments, self._spec.query)
        try:
            response = await self._client.send(self._request_of(request))
        except ResponseTooLarge as error:
            raise ToolFailed(f"its answer is too large: {error}") from None
        except RequestRefused as error:
            raise ToolFailed(f"the call is refused: {error}") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise ToolUnavailable(f"api {self._spec.name!r} cannot be reached: {_words_of(error)}") from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise ToolUnavailable(
                f"api {self._spec.name!r} gave no answer: {_words_of(error)}", may_have_run=True
            ) from None
        if not response.is_success:
            raise _failure_of(response)
        return _text_of(response)

    def _request_of(self, request: ApiRequest) -> httpx2.Request:
        headers = {**request.headers, "accept": "application/json, text/*;q=0.5"}
        content = request.content
        body, files = None, None
        if content is not None and content.parts:
            files = [_file_of(part) for part in content.parts]
        elif content is not None:
            headers["content-type"] = content.media_type
            body = content.text.encode(errors="replace")
        names = {name.lower() for name in (*headers, *self._spec.headers)}
        if (effect_id := current_effect_id()) and "idempotency-key" not in names:
            headers["idempotency-key"] = effect_id
        # The configured headers take precedence.
        headers.update(self._spec.headers)
        url = self._spec.url + request.target
        return self._client.build_request(request.method, url, headers=headers, content=body, files=files)


def _file_of(part: Part) -> tuple[str, tuple[str | None, bytes, str | None]]:
    """Convert a part for httpx2, which chooses a random boundary that no text can contain on purpose."""
    return part.name, (part.file_name, part.text.encode(errors="replace"), part.media_type)


def _words_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _failure_of(response: httpx2.Response) -> ToolFailed:
    status = response.status_code
    words = f"the api answered {status} {response.reason_phrase}".rstrip()
    if response.is_redirect:
        return ToolFailed(f"{words}: redirects are not followed")
    text = ""
    if _is_text(_media_type_of(response)):
        text = _decoded(response)[:MAX_ERROR_CHARS].strip()
    return ToolFailed(f"{words}: {text}" if text else words, is_final=status not in _PASSING)


def _text_of(response: httpx2.Response) -> str:
    if not response.content:
        return f"the api answered {response.status_code} without content"
    media_type = _media_type_of(response)
    if not _is_text(media_type):
        raise ToolFailed(
            f"its answer is {media_type[:80]!r} of {len(response.content)} bytes: only JSON and text are given"
        )
    text = _decoded(response)
    if not is_json(media_type):
        return text
    try:
        return dump_json(parse_json(text, is_rewritable=True))
    except JsonTextError as error:
        raise ToolFailed(f"its answer should be JSON, and is not: {error}") from None


def _media_type_of(response: httpx2.Response) -> str:
    """Return the declared media type without its parameters. A body without a type is not treated as text."""
    declared = response.headers.get("content-type", "application/octet-stream")
    return str(declared).partition(";")[0].strip().lower()


def _is_text(media_type: str) -> bool:
    return (
        media_type.startswith("text/")
        or media_type.endswith("+xml")
        or media_type in _TEXT_TYPES
        or is_json(media_type)
    )


def _decoded(response: httpx2.Response) -> str:
    encoding = (response.charset_encoding or "utf-8").lower()
    return response.content.decode(encoding if encoding in _ENCODINGS else "utf-8", errors="replace")
