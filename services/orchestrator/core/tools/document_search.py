"""The tool `search_documents`: its definition, its arguments and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.grammar.arguments import ArgumentChecker, InvalidArguments

NAME: Final = "search_documents"
MAX_QUERY_CHARS: Final = 8192
MAX_CHUNKS: Final = 20
DEFAULT_CHUNKS: Final = 5
MAX_RESULT_BYTES: Final = 65_536
MAX_SHOWN_CHARS: Final = 8192  # A longer chunk is cut, so that at least one chunk fits.


@dataclass(frozen=True, slots=True)
class DocumentQuery:
    """The arguments of a call to the tool."""

    query: str
    collection: str
    max_chunks: int


class DocumentSearch:
    """The tool that searches the given collections.

    The model names a collection only if there are several.
    """

    def __init__(self, collections: Sequence[str]) -> None:
        self._collections = collections
        schema = {
            "type": "object",
            "properties": dict(_parameters(collections)),
            "required": ["query"] if len(collections) == 1 else ["query", "collection"],
            "additionalProperties": False,
        }
        self.definition = ToolDefinition(
            name=NAME,
            description="Finds chunks of stored documents, with their sources. Use it for whatever documents may say.",
            parameters_json=dump_json(schema),
            safety=ToolSafety.READ,
            idempotent=True,
        )
        self._checker = ArgumentChecker(NAME, self.definition.parameters_json)

    def read(self, arguments_json: str) -> DocumentQuery:
        """Parse a call's arguments. Raises InvalidRequest (TOOL_INVALID_ARGUMENTS) if they are invalid."""
        try:
            arguments = self._checker.parse(arguments_json)
        except InvalidArguments as error:
            text = f"tool {NAME!r} was not run: {error}"
            raise InvalidRequest(text, code=ErrorCode.TOOL_INVALID_ARGUMENTS) from None
        return DocumentQuery(
            query=arguments["query"],
            collection=arguments.get("collection", self._collections[0]),
            max_chunks=int(arguments.get("max_chunks", DEFAULT_CHUNKS)),
        )


def _parameters(collections: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "query", {"type": "string", "description": "What to look for", "minLength": 1, "maxLength": MAX_QUERY_CHARS}
    if len(collections) > 1:
        yield "collection", {"enum": list(collections), "description": "Where to look"}
    yield "max_chunks", {"type": "integer", "minimum": 1, "maximum": MAX_CHUNKS, "default": DEFAULT_CHUNKS}


def write_result(chunks: Sequence[Chunk], max_bytes: int = MAX_RESULT_BYTES) -> str:
    """Return the best chunks that fit into `max_bytes`, as JSON in order, and the number of omitted chunks."""
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
