"""Tools that read, list and write files below the folders that the deployment configures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pagantic_common.domain.messages import ToolDefinition, ToolFailed, ToolSafety
from pagantic_common.domain.text.json_text import dump_json
from services.tools.adapters.builtin.parameters import object_schema
from services.tools.adapters.builtin.rooted_files import RootedFiles
from services.tools.core.builtin.file_paths import MAX_PATH_CHARS
from services.tools.ports import Report, Tool

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_WRITTEN_CHARS = 262_144
MAX_ENTRIES = 500
TIMEOUT_S = 10.0


def _path_of(what: str) -> dict[str, Any]:
    return {"type": "string", "description": what, "minLength": 1, "maxLength": MAX_PATH_CHARS}


class ReadFileTool:
    """Reads lines of a text file."""

    unavailable_reason = ""
    is_remote = False
    places = None

    def __init__(self, files: RootedFiles) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="read_file",
            description=f"Reads a text file. A path begins with one of the folders {', '.join(files.names)}.",
            parameters_json=object_schema(
                ("path",),
                path=_path_of(f"the path, for example {files.names[0]}/notes.txt"),
                first_line={"type": "integer", "description": "the first line to read, from 1", "minimum": 1},
                line_count={"type": "integer", "description": "how many lines to read; all by default", "minimum": 1},
            ),
            safety=ToolSafety.READ,
            idempotent=True,
            timeout_s=TIMEOUT_S,
        )

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the text of the selected lines. Raises ToolFailed."""
        path = arguments["path"]
        content = await asyncio.to_thread(self._files.read, path, MAX_FILE_BYTES)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(f"file {path!r} is not UTF-8 text: byte {error.start} is wrong") from None
        if "first_line" not in arguments and "line_count" not in arguments:
            return text
        start = arguments.get("first_line", 1) - 1
        lines = text.splitlines(keepends=True)[start:]
        return "".join(lines[: arguments.get("line_count")])


class ListFilesTool:
    """Lists the entries of a folder."""

    unavailable_reason = ""
    is_remote = False
    places = None

    def __init__(self, files: RootedFiles) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="list_files",
            description=f"Lists the files of a folder. A path begins with one of the folders {', '.join(files.names)}.",
            parameters_json=object_schema(("path",), path=_path_of(f"the folder, for example {files.names[0]}")),
            safety=ToolSafety.READ,
            idempotent=True,
            timeout_s=TIMEOUT_S,
        )

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the name, the kind and the size of each entry as a JSON object. Raises ToolFailed."""
        entries, is_truncated = await asyncio.to_thread(self._files.list_folder, arguments["path"], MAX_ENTRIES)
        listed = [{"name": entry.name, "kind": entry.kind, "bytes": entry.size_bytes} for entry in entries]
        return dump_json({"entries": listed, "is_truncated": is_truncated})


class WriteFileTool:
    """Writes a whole text file or nothing."""

    unavailable_reason = ""
    is_remote = False
    places = None

    def __init__(self, files: RootedFiles) -> None:
        self._files = files
        self.definition = ToolDefinition(
            name="write_file",
            description=f"Writes a text file. A path begins with one of the folders {', '.join(files.writable_names)}.",
            parameters_json=object_schema(
                ("path", "content"),
                path=_path_of(f"the path, for example {files.writable_names[0]}/notes.txt"),
                content={"type": "string", "description": "the whole text", "maxLength": MAX_WRITTEN_CHARS},
                overwrite={"type": "boolean", "description": "whether to replace an existing file; false by default"},
            ),
            safety=ToolSafety.WRITE,
            timeout_s=TIMEOUT_S,
        )

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return a message with the amount of text written. Raises ToolFailed."""
        path = arguments["path"]
        try:
            content = arguments["content"].encode()
        except UnicodeEncodeError:
            raise ToolFailed("the content is not valid Unicode") from None
        is_overwriting = arguments.get("overwrite", False)
        await asyncio.to_thread(self._files.write, path, content, is_overwriting=is_overwriting)
        return f"wrote {len(content)} bytes to {path!r}"


def file_tools(files: RootedFiles) -> list[Tool]:
    """Return the tools for the configured folders, or an empty list if there are no folders."""
    tools: list[Tool] = []
    if files.names:
        tools += [ReadFileTool(files), ListFilesTool(files)]
    if files.writable_names:
        tools.append(WriteFileTool(files))
    return tools
