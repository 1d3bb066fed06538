"""Defines rules that read each format of a tool call in an answer. They ignore the text around a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.inference.core.answers.answer_text import AnswerText, JsonScan, Reading
from services.inference.core.generation import ToolCallDelta

_ARGUMENTS_KEYS = ('"arguments"', '"parameters"')
_OTHER_KEYS = ('"id"', '"type"')  # an object with any other key is not a call


@dataclass(slots=True)
class _CallObject:
    """A call whose object is being read. `arguments` is set only if the arguments preceded the name."""

    name: str = ""
    arguments: str = ""
    is_shown: bool = False


class CallRules:
    """Reads calls of the tools named `names` and shows them in `text`."""

    def __init__(self, text: AnswerText, names: Sequence[str], new_call_id: Callable[[], str]) -> None:
        self._text = text
        self._names = tuple(names)
        self._new_call_id = new_call_id
        self.calls: list[ToolCall] = []
        self.is_broken = False

    def after(self, opening: str) -> Reading[bool]:
        """Read the text right after an opening. Returns whether its block has a call or may still contain a call."""
        match opening:
            case "{":
                return (yield from self._object())
            case "<function=":
                return (yield from self._function())
            case "[TOOL_CALLS]":
                yield from self._text.spaces()
                return self._text.char in {"[", "{"} or (yield from self._named_arguments())
            case "```":
                while self._text.char.isalnum():  # the language of the fence
                    yield from self._text.hold()
        return True

    def _function(self) -> Reading[bool]:
        """Read `NAME>{..}`."""
        text = self._text
        name = yield from self._name()
        if not name or text.char != ">":
            return False
        yield from text.hold()
        return (yield from self._arguments_of(name))

    def _named_arguments(self) -> Reading[bool]:
        """Read `NAME[ARGS]{..}`, also with `[CALL_ID]ID` before the arguments or without `[ARGS]`."""
        text = self._text
        name = yield from self._name()
        if not name:
            return False
        if (yield from text.marker(("[ARGS]", "[CALL_ID]"))) == "[CALL_ID]":
            while text.char.isalnum():
                yield from text.hold()
            yield from text.marker(("[ARGS]",))
        return (yield from self._arguments_of(name))

    def _name(self) -> Reading[str]:
        """Hold the longest prefix of an offered name. Returns the name, or an empty string if it is incomplete."""
        text, read = self._text, ""
        while text.char and any(name.startswith(read + text.char) for name in self._names):
            read += text.char
            yield from text.hold()
        if read not in self._names:
            return ""
        return read

    def _object(self) -> Reading[bool]:
        """Read the members of an object whose opening brace is held. Returns whether the object is a call.

        A shown call remains a call even if the rest of its object is malformed, but then its block ends.
        """
        text, call = self._text, _CallObject()
        while True:
            key = yield from self._key()
            if not key or not (yield from self._member(key, call)):
                break
            yield from text.spaces()
            if text.char == "}":
                if call.name and not call.is_shown:
                    self._show_call(call.name, "{}")
                    call.is_shown = True
                yield from text.hold()
                if call.is_shown:
                    text.drop()
                return call.is_shown
            if text.char != ",":
                break
            yield from text.hold()
        return call.is_shown and not text.held.strip()

    def _key(self) -> Reading[str]:
        """Hold a member's key up to its value. Returns the key as written, or an empty string if there is no key."""
        text = self._text
        yield from text.spaces()
        key = ""
        if text.char == '"':
            key = yield from text.value()
        yield from text.spaces()
        if text.char != ":":
            return ""
        yield from text.hold()
        yield from text.spaces()
        return key

    def _member(self, key: str, call: _CallObject) -> Reading[bool]:
        """Read a member's value. Returns whether the object may still be a call."""
        text = self._text
        if call.is_shown:
            yield from text.value()
            return True
        if key == '"name"' and not call.name:
            return (yield from self._name_member(call))
        if key in _ARGUMENTS_KEYS and not call.arguments:
            if call.name:
                call.is_shown = yield from self._arguments_of(call.name)
                return call.is_shown
            call.arguments = yield from text.value()
            return isinstance(_parsed(call.arguments), dict)
        return key in _OTHER_KEYS and _parsed((yield from text.value())) is not None

    def _name_member(self, call: _CallObject) -> Reading[bool]:
        """Read the value of `name`. Returns whether it names an offered tool."""
        name = _parsed((yield from self._text.value()))
        if not isinstance(name, str) or name not in self._names:
            return False
        call.name = name
        if call.arguments:
            self._show_call(call.name, call.arguments)
            call.is_shown = True
        return True

    def _arguments_of(self, name: str) -> Reading[bool]:
        """Show the arguments of a call while they arrive. Returns False if there are no arguments."""
        text = self._text
        yield from text.spaces()
        if text.char != "{":
            return False
        text.drop()
        call_id, delta = self._show_head(name)
        scan, parts = JsonScan(), list[str]()
        while text.char and scan.take(text.char):
            parts.append(text.char)
            yield from text.pass_shown(delta)
        arguments = "".join(parts)
        if isinstance(_parsed(arguments), dict):
            self.calls.append(ToolCall(call_id, name, arguments))
        else:
            self.is_broken = True
            yield from text.pass_rest()
        return True

    def _show_call(self, name: str, arguments: str) -> None:
        self._text.drop()
        call_id, delta = self._show_head(name)
        self._text.show(delta, arguments)
        self.calls.append(ToolCall(call_id, name, arguments))

    def _show_head(self, name: str) -> tuple[str, ToolCallDelta]:
        """Show the start of a call. Returns the call's id and the delta for its arguments."""
        call_id, index = self._new_call_id(), len(self.calls)
        self._text.show(ToolCallDelta(index, call_id, name), "")
        return call_id, ToolCallDelta(index)


def _parsed(json_text: str) -> Any:
    """Parse JSON. Returns None if the text is not JSON or cannot be serialized again."""
    try:
        return parse_json(json_text, is_rewritable=True)
    except JsonTextError:
        return None
