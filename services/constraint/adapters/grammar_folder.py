"""Reads named grammars from a folder of `<name>.gbnf` files, once at startup."""

from __future__ import annotations

from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.grammar.gbnf import parse_gbnf
from pagantic_common.grammar.problems import GrammarError


class GrammarFolder:
    """Implements NamedGrammars. Raises InvalidRequest if the folder is missing or a file is not a valid grammar."""

    def __init__(self, folder: Path | None) -> None:
        self._texts: dict[str, str] = {}
        if folder is None:
            return
        if not folder.is_dir():
            raise InvalidRequest(f"the grammars folder {str(folder)!r} is not a folder")
        for path in sorted(folder.glob("*.gbnf")):
            try:
                text = path.read_text(encoding="utf-8")
                parse_gbnf(text)
            except (OSError, UnicodeDecodeError, GrammarError) as error:
                raise InvalidRequest(f"the grammar {path.name!r} cannot be used: {error}") from None
            self._texts[path.stem] = text

    def read(self, name: str) -> str:
        """Return the GBNF text of the grammar."""
        try:
            return self._texts[name]
        except KeyError:
            names = ", ".join(self._texts) or "none"
            raise InvalidRequest(
                f"no grammar is named {name!r}; configured: {names}", code=ErrorCode.CONFIG_GRAMMAR_NOT_FOUND
            ) from None
