"""Separates reasoning, content and tool calls while a candidate's text arrives. Independent of tokens and schemas.

Theory of operation. The parser is a set of rules written as generators. Each rule reads the current character and
pauses until the next character arrives. A rule therefore reads like its grammar, and the work is linear in the text.
Text that may become markup or a tool call is held back. If the text is markup, the parser drops it. If it can be
neither markup nor a call, the parser shows it as content. It shows a call as soon as it has read the name of an
offered tool and the opening of the arguments. From then on, it shows the arguments character by character.

At the beginning and after a call, the parser recognizes the openings of all formats, because small models answer in
bare or fenced JSON regardless of their template. In the middle of text, it recognizes only the openings of the model's
own format, because a text may quote JSON.

Invariants:
    1. The joined pieces do not depend on the splitting of the fed text.
    2. Without a call and without reasoning markers, the content is the text, character by character.
    3. A shown piece is never retracted.
    4. The shown arguments of a call equal its arguments in `calls`: a JSON object, as the model wrote it.
    5. Every call names an offered tool. A call-like text with any other name is content.

The parser drops white space around reasoning, between calls, and between reasoning and content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.inference.core.answers.answer_text import AnswerText, JsonScan, Piece, Reading
from services.inference.core.answers.dialect import CALL_OPENINGS, ENDS_OF_BLOCKS, VERBATIM, Dialect
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
        """Hold the longest prefix of an offered name. Returns the name; empty if it is incomplete."""
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


_CALL_SEPARATORS = (",", ";")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of the answers to one request, which determines how their parsers are set up.

    `holds_arguments` means that the decoder enforces the tools' schemas on the arguments of calls.
    """

    dialect: Dialect
    tool_names: tuple[str, ...] = ()
    is_enforced: bool = False
    holds_arguments: bool = False

    @property
    def only_offers_calls(self) -> bool:
        """Whether the model may, but need not, call a tool."""
        return bool(self.tool_names) and not self.is_enforced

    def under_constraint(self) -> AnswerForm:
        """Return the form under a caller's constraint. No text is a call, and only reasoning is markup."""
        if self.dialect.may_reason:
            return AnswerForm(self.dialect)
        return AnswerForm(VERBATIM)


class AnswerParser:
    """Parses the answer of one candidate. Each candidate needs a new parser.

    The fed text must include the texts in `dialect.MEANT_CONTROL_TEXTS`, even if they are control tokens of the model.

    Args:
        dialect: The model's dialect after the prompt (`Dialect.after`).
        names: The tools that the model may call. Without tools, no text is a call.
        is_enforced: Whether the decoder enforces a single call, an object with a name and arguments. If so, no text is
            content or reasoning.
        new_call_id: Returns the id of the next call.
    """

    def __init__(
        self, dialect: Dialect, names: Sequence[str], *, is_enforced: bool, new_call_id: Callable[[], str]
    ) -> None:
        self._dialect = dialect
        self._has_tools = bool(names)
        self._text = AnswerText()
        self._call = CallRules(self._text, names, new_call_id)
        if is_enforced:
            self._reading = self._enforced_call()
        else:
            self._reading = self._answer()

    def feed(self, text: str) -> list[Piece]:
        """Read the next text and return the pieces that are now certain, in order."""
        for char in text:
            self._text.char = char
            next(self._reading, None)
        return self._text.take_shown()

    def finish(self) -> list[Piece]:
        """Return the last pieces at the end of the output. Do not feed text afterwards."""
        self._text.char = ""
        next(self._reading, None)
        return self._text.take_shown()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of the turn, in order. The calls are complete after `finish`."""
        return tuple(self._call.calls)

    @property
    def is_broken(self) -> bool:
        """Whether a shown or enforced call is incomplete or not JSON.

        Nothing is shown after such a call. The value is valid after `finish`.
        """
        return self._call.is_broken

    def _enforced_call(self) -> Reading[None]:
        yield from self._text.spaces()
        if self._text.char == "{":
            yield from self._text.hold()
            yield from self._call.after("{")
        self._call.is_broken = not self._call.calls

    def _answer(self) -> Reading[None]:
        text = self._text
        in_text: tuple[str, ...] = ()
        if self._has_tools:
            in_text = self._dialect.openings_in_text
        beginnings = {opening[0] for opening in in_text}
        if self._dialect.reasoning and self._dialect.is_in_reasoning:
            yield from self._reasoning(self._dialect.reasoning[1])
        yield from self._blocks(self._openings)
        while text.char:
            text.release("content")
            while text.char and text.char not in beginnings:
                yield from text.pass_shown("content")
            yield from self._blocks(in_text)
        text.release("content")

    @property
    def _openings(self) -> tuple[str, ...]:
        """The markers that may open a block at the beginning of the answer."""
        openings: tuple[str, ...] = ()
        if self._dialect.reasoning:
            openings = self._dialect.reasoning[:1]
        if self._has_tools:
            openings += CALL_OPENINGS
        return openings

    def _reasoning(self, end: str) -> Reading[None]:
        """Show reasoning up to its closing marker, without the surrounding white space."""
        text = self._text
        yield from text.spaces()
        text.drop()
        while text.char:
            if (yield from text.marker((end,))):
                break
            text.release("reasoning")
            while text.char and text.char != end[0]:
                yield from text.spaces()
                if text.char and text.char != end[0]:
                    text.release("reasoning")
                    yield from text.pass_shown("reasoning")
        yield from text.spaces()
        text.drop()

    def _blocks(self, openings: Sequence[str]) -> Reading[None]:
        """Read calls and reasoning up to other text. The first block begins with one of `openings`.

        Text that is still held at the end is content.
        """
        text = self._text
        ends: list[str] = []
        is_after_call = False  # held markup before the first call may turn out to be content
        yield from text.spaces()
        while marker := (yield from text.marker(openings)):
            if is_after_call and marker in ends:
                del ends[ends.index(marker) :]
                text.drop()
                openings = self._openings_after_call(ends)
            elif end := self._reasoning_end(marker):
                yield from self._reasoning(end)
            elif marker not in _CALL_SEPARATORS:
                before = len(self._call.calls)
                if not (yield from self._call.after(marker)):
                    return
                is_after_call = len(self._call.calls) > before
                _add_end(ends, marker)
                openings = CALL_OPENINGS
                if is_after_call:
                    openings = self._openings_after_call(ends)
            yield from text.spaces()
        if is_after_call and self._is_left_over(ends):
            text.drop()

    def _reasoning_end(self, marker: str) -> str:
        """Return the closing marker of reasoning if `marker` opens reasoning, or an empty string otherwise."""
        reasoning = self._dialect.reasoning
        if reasoning is None or marker != reasoning[0]:
            return ""
        return reasoning[1]

    def _is_left_over(self, ends: Sequence[str]) -> bool:
        """Return whether the text after the last call is only separators or a prefix of a block's closing marker."""
        if self._text.char:
            return False
        rest = self._text.held.strip(" \t\r\n" + "".join(_CALL_SEPARATORS))
        return any(end.startswith(rest) for end in ("", *ends))

    def _openings_after_call(self, ends: Sequence[str]) -> tuple[str, ...]:
        return (*ends, *_CALL_SEPARATORS, *self._openings)


def _add_end(ends: list[str], marker: str) -> None:
    """Append to `ends` the closing marker, if any, of the block that `marker` opens."""
    end = ENDS_OF_BLOCKS.get(marker)
    if end and end not in ends:
        ends.append(end)
