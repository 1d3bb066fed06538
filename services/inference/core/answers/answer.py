"""Separates reasoning, content and tool calls while a candidate's text arrives. Knows neither tokens nor schemas.

Theory of operation. The parser is a set of rules written as generators: each looks at the current character and pauses
where it needs the next, so that a rule reads like the grammar it stands for, and what was read is never read again:
the work is linear in the text. Text that may become markup or a tool call is held back. It is dropped once it did, and
shown as content once it cannot any more. A call is shown from the moment its name is known to be an offered one and
its arguments open: from there on it is a call, and its arguments are shown character by character.

At the beginning, and after a call, the openings of all formats count, for small models answer in bare or fenced JSON
whatever their template asks for. In the midst of text only those of the model's own format do, since a text may well
quote JSON.

Invariants:
    1. The pieces, joined, do not depend on how the text was cut when it was fed.
    2. Without a call and without reasoning markers the content is the text, character by character.
    3. What was shown is never taken back.
    4. The arguments shown for a call are those of the call in `calls`: a JSON object, as the model wrote it.
    5. Every call is one of an offered tool; text with any other name is content.

White space around reasoning, between calls and between reasoning and content is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagantic_common.domain.messages import ToolCall
from services.inference.core.answers.answer_text import AnswerText, Piece, Reading
from services.inference.core.answers.call_rules import CallRules
from services.inference.core.answers.dialect import CALL_OPENINGS, ENDS_OF_BLOCKS, Dialect

_SEPARATORS = (",", ";")  # of calls


class AnswerParser:
    """Parses the answer of one candidate; make a new one for each.

    The texts in `dialect.MEANT_CONTROL_TEXTS` must be part of what is fed, also where the model has them as control
    tokens.

    Args:
        dialect: How the model writes; `Dialect.after` the prompt.
        names: Tools that may be called; empty: nothing is a call.
        is_enforced: The decoder gives one call, an object with name and arguments: no text is content or reasoning.
        new_call_id: Gives the next call its id.
    """

    def __init__(
        self, dialect: Dialect, names: Sequence[str], *, is_enforced: bool, new_call_id: Callable[[], str]
    ) -> None:
        self._dialect = dialect
        self._has_tools = bool(names)
        self._text = AnswerText()
        self._call = CallRules(self._text, names, new_call_id)
        self._reading = self._enforced_call() if is_enforced else self._answer()

    def feed(self, text: str) -> list[Piece]:
        """Take the next text and return what may be shown now, in order."""
        for char in text:
            self._take(char)
        return self._text.take_shown()

    def finish(self) -> list[Piece]:
        """Return what is left to show at the end of the output; nothing may be fed afterwards."""
        self._take("")
        return self._text.take_shown()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of the turn, in order; all of them after `finish`."""
        return tuple(self._call.calls)

    @property
    def is_broken(self) -> bool:
        """Whether a call that was shown, or enforced, did not become one: it was cut off or is not JSON.

        What follows it is not shown. Valid after `finish`.
        """
        return self._call.is_broken

    def _take(self, char: str) -> None:
        self._text.char = char
        next(self._reading, None)

    def _enforced_call(self) -> Reading[None]:
        yield from self._text.spaces()
        if self._text.char == "{":
            yield from self._text.hold()
            yield from self._call.after("{")
        self._call.is_broken = not self._call.calls

    def _answer(self) -> Reading[None]:
        text = self._text
        in_text = self._dialect.openings_in_text if self._has_tools else ()
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
        """What may open a block where no text is before it."""
        reasoning = self._dialect.reasoning[:1] if self._dialect.reasoning else ()
        return (*reasoning, *CALL_OPENINGS) if self._has_tools else reasoning

    def _reasoning(self, end: str) -> Reading[None]:
        """Show reasoning up to its end, without the white space around it."""
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
        """Read calls and reasoning, as long as nothing else comes, the first after one of `openings`.

        What is held at the end is content.
        """
        text = self._text
        ends: list[str] = []
        is_after_call = False  # else markup may be held that no call has followed yet
        yield from text.spaces()
        while marker := (yield from text.marker(openings)):
            if is_after_call and marker in ends:
                del ends[ends.index(marker) :]
                text.drop()
                openings = self._openings_after_call(ends)
            elif self._dialect.reasoning and marker == self._dialect.reasoning[0]:
                yield from self._reasoning(self._dialect.reasoning[1])
            elif marker not in _SEPARATORS:
                before = len(self._call.calls)
                if not (yield from self._call.after(marker)):
                    return
                is_after_call = len(self._call.calls) > before
                if (end := ENDS_OF_BLOCKS.get(marker)) and end not in ends:
                    ends.append(end)
                openings = self._openings_after_call(ends) if is_after_call else CALL_OPENINGS
            yield from text.spaces()
        if is_after_call and not text.char and _is_left_over(text.held, ends):
            text.drop()

    def _openings_after_call(self, ends: Sequence[str]) -> tuple[str, ...]:
        return (*ends, *_SEPARATORS, *self._openings)


def _is_left_over(held: str, ends: Sequence[str]) -> bool:
    """Tell whether what is held after a call is but separators, or the beginning of the end of a block."""
    rest = held.strip(" \t\r\n" + "".join(_SEPARATORS))
    return any(end.startswith(rest) for end in ("", *ends))
