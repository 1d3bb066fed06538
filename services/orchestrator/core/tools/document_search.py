"""The tool `search_documents`: its definition, its arguments and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json

NAME: Final = "search_documents"
MAX_QUERY_CHARS: Final = 8192
MAX_CHUNKS: Final = 20
DEFAULT_CHUNKS: Final = 5
MAX_RESULT_BYTES: Final = 65_536
MAX_SHOWN_CHARS: Final = 8192  # a longer chunk is cut, so that at least one fits


@dataclass(frozen=True, slots=True)
class DocumentQuery:
    """The arguments of a call."""

    query: str
    collection: str
    max_chunks: int


def define_search(collections: Sequence[str]) -> ToolDefinition:
    """Return the tool that searches these collections; a model names one only where there are several."""
    schema = {
        "type": "object",
        "properties": dict(_parameters(collections)),
        "required": ["query"] if len(collections) == 1 else ["query", "collection"],
        "additionalProperties": False,
    }
    return ToolDefinition(
        name=NAME,
        description="Finds chunks of stored documents, with their sources. Use it for whatever documents may say.",
        parameters_json=dump_json(schema),
        safety=ToolSafety.READ,
        idempotent=True,
    )


def _parameters(collections: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "query", {"type": "string", "description": "What to look for", "minLength": 1, "maxLength": MAX_QUERY_CHARS}
    if len(collections) > 1:
        yield "collection", {"enum": list(collections), "description": "Where to look"}
    yield "max_chunks", {"type": "integer", "minimum": 1, "maximum": MAX_CHUNKS, "default": DEFAULT_CHUNKS}


def read_query(arguments_json: str, collections: Sequence[str]) -> DocumentQuery:
    """Read a call's arguments; raises InvalidRequest (TOOL_INVALID_ARGUMENTS)."""
    arguments = _read_object(arguments_json)
    known = {name for name, _ in _parameters(collections)}
    if unknown := sorted(arguments.keys() - known):
        raise _invalid(f"{unknown[0][:80]!r} is unknown: known are {', '.join(sorted(known))}")
    return DocumentQuery(
        _check_query(arguments.get("query")),
        _check_collection(arguments.get("collection"), collections),
        _check_max_chunks(arguments.get("max_chunks", DEFAULT_CHUNKS)),
    )


def _check_query(query: Any) -> str:
    if not isinstance(query, str) or not 0 < len(query) <= MAX_QUERY_CHARS:
        raise _invalid(f"query must be a text of 1 to {MAX_QUERY_CHARS} characters")
    return query


def _check_collection(name: Any, collections: Sequence[str]) -> str:
    if len(collections) == 1:
        return collections[0]
    if not isinstance(name, str) or name not in collections:
        raise _invalid(f"collection must be one of {', '.join(collections)}")
    return name


def _check_max_chunks(count: Any) -> int:
    is_whole = isinstance(count, int | float) and not isinstance(count, bool) and count == int(count)
    if not is_whole or not 1 <= count <= MAX_CHUNKS:
        raise _invalid(f"max_chunks must be a whole number of 1 to {MAX_CHUNKS}")
    return int(count)


def _read_object(arguments_json: str) -> dict[str, Any]:
    try:
        arguments = parse_json(arguments_json or "{}")
    except JsonTextError as error:
        raise _invalid(f"they are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise _invalid("they are not a JSON object")
    return arguments


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the arguments of {NAME!r} are invalid: {reason}", code=ErrorCode.TOOL_INVALID_ARGUMENTS)


def write_result(chunks: Sequence[Chunk], max_bytes: int = MAX_RESULT_BYTES) -> str:
    """Return as JSON the chunks that fit into `max_bytes`, the best first, and how many were left out."""
    written: list[dict[str, Any]] = []
    size_bytes = len(_write(written, len(chunks)).encode())
    for chunk in chunks:
        entry = _entry_of(chunk)
        entry_bytes = len(dump_json(entry).encode(errors="replace")) + 1
        if size_bytes + entry_bytes <= max_bytes:
            size_bytes += entry_bytes
            written.append(entry)
    return _write(written, len(chunks) - len(written))


def _entry_of(chunk: Chunk) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": chunk.source, "content": chunk.content}
    if len(chunk.content) > MAX_SHOWN_CHARS:
        entry |= {"content": chunk.content[:MAX_SHOWN_CHARS], "is_cut": True}
    return entry


def _write(contents: Sequence[Mapping[str, Any]], left_out: int) -> str:
    result: dict[str, Any] = {"chunks": contents}
    if left_out:
        result["left_out"] = left_out
    return dump_json(result)
