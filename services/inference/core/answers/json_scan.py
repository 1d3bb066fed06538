"""Finds the end of a JSON value while its text arrives. Does not check that the text is JSON."""

from __future__ import annotations

JSON_SPACES = frozenset(" \t\r\n")
_OPENING, _CLOSING = frozenset("{["), frozenset("}]")
_AFTER_SCALAR = JSON_SPACES | frozenset(",:")


class JsonScan:
    """Follows one value by string, escape and depth, with constant work per character.

    It counts brackets without pairing them; a JSON parser checks the text afterwards.
    """

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "is_complete")

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_complete = False

    def take(self, char: str) -> bool:
        """Take the next character and tell whether it belongs to the value; False once the value is complete.

        A string, an object or an array is complete with its last character, any other value with the next character.
        """
        if self.is_complete:
            return False
        if self._is_in_string:
            self._take_in_string(char)
        elif char == '"':
            self._is_in_string = True
        elif char in _OPENING:
            self._depth += 1
        elif self._depth == 0 and (char in _AFTER_SCALAR or char in _CLOSING):
            self.is_complete = True
            return False
        elif char in _CLOSING:
            self._depth -= 1
            self.is_complete = self._depth == 0
        return True

    def _take_in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_in_string = False
            self.is_complete = self._depth == 0
