"""Reads the operator's shared prompts: the files `<name>.txt` and `<name>.md` in a folder."""

from __future__ import annotations

from pathlib import Path

from pagantic_common.domain.errors import InvalidRequest

SUFFIXES = (".md", ".txt")
MAX_PROMPTS = 64
MAX_PROMPT_BYTES = 256 * 1024


def read_shared_prompts(folder: str) -> list[str]:
    """Return the texts in a folder without trailing white space, or an empty list if `folder` is empty.

    Raises InvalidRequest if the folder or a file cannot be read.
    """
    if not folder:
        return []
    try:
        paths = sorted(path for path in Path(folder).iterdir() if path.suffix in SUFFIXES and path.is_file())
    except OSError as error:
        raise InvalidRequest(f"the folder of shared prompts {folder!r} cannot be read: {error.strerror}") from None
    if len(paths) > MAX_PROMPTS:
        raise InvalidRequest(f"the folder of shared prompts {folder!r} has {len(paths)} of them; at most {MAX_PROMPTS}")
    return [_read(path) for path in paths]


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
        if len(data) > MAX_PROMPT_BYTES:
            raise InvalidRequest(f"the shared prompt {path.name!r} has {len(data)} bytes; at most {MAX_PROMPT_BYTES}")
        text = data.decode("utf-8-sig").rstrip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the shared prompt {path.name!r} cannot be read: {error}") from None
    if not text:
        raise InvalidRequest(f"the shared prompt {path.name!r} is empty")
    return text
