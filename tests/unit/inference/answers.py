"""Answers as models write them, and what a parser made of one."""

import itertools

from pagantic_common.domain.messages import ToolCall
from services.inference.core.answers.answer import AnswerParser
from services.inference.core.answers.dialect import Dialect, ToolFormat

NAMES = ("clock", "clock_set", "maths")
HERMES, LLAMA3, MISTRAL, GENERIC = (Dialect(tool_format) for tool_format in ToolFormat)
CALL = '{"name": "clock", "arguments": {"zone": "UTC"}}'
CLOCK = [("clock", '{"zone": "UTC"}')]


class Answer:
    """What a parser made of a text: what it showed, in order, with neighbours joined, and how it ended."""

    def __init__(self, pieces, parser):
        self.shown = []
        for piece in pieces:
            kind, text = self._entry(piece)
            if self.shown and self.shown[-1][0] == kind[:2]:
                self.shown[-1][1] += text
            else:
                self.shown.append([kind[:2], text])
        self.content = "".join(piece.content for piece in pieces)
        self.reasoning = "".join(piece.reasoning for piece in pieces)
        self.deltas = [piece.tool_call for piece in pieces if piece.tool_call]
        self.calls = parser.calls
        self.is_broken = parser.is_broken

    @staticmethod
    def _entry(piece):
        fields = [piece.content, piece.reasoning, piece.tool_call]
        assert sum(map(bool, fields)) == 1, piece
        if piece.tool_call:
            return ("call", piece.tool_call.index), piece.tool_call.arguments_json
        return ("content" if piece.content else "reasoning", 0), piece.content or piece.reasoning

    @property
    def named(self):
        return [(call.name, call.arguments_json) for call in self.calls]

    @property
    def shown_calls(self):
        """The calls as their deltas give them."""
        calls = {}
        for delta in self.deltas:
            if delta.index not in calls:
                assert delta.id
                assert delta.name
                calls[delta.index] = [delta.id, delta.name, ""]
            else:
                assert not delta.id
                assert not delta.name
            calls[delta.index][2] += delta.arguments_json
        assert list(calls) == list(range(len(calls)))
        return tuple(ToolCall(*call) for call in calls.values())


def new_parser(dialect=HERMES, names=NAMES, *, is_enforced=False):
    numbers = itertools.count(1)
    return AnswerParser(dialect, names, is_enforced=is_enforced, new_call_id=lambda: f"call-{next(numbers)}")


def parse(chunks, dialect=HERMES, names=NAMES, *, is_enforced=False):
    """Feed a text, or its chunks."""
    parser = new_parser(dialect, names, is_enforced=is_enforced)
    chunks = [chunks] if isinstance(chunks, str) else chunks
    pieces = [piece for chunk in chunks for piece in parser.feed(chunk)]
    return Answer(pieces + parser.finish(), parser)


def cut(text, sizes):
    ends = list(itertools.accumulate(sizes))
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def write(name, arguments, key="arguments"):
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def each(template, separator="", key="arguments"):
    return lambda calls: separator.join(template.format(write(*call, key)) for call in calls)


def as_list(template):
    return lambda calls: template.format("[" + ", ".join(write(*call) for call in calls) + "]")


def arguments_first(calls):
    return "\n".join(f'<tool_call>{{"arguments":{args},"name":"{name}"}}</tool_call>' for name, args in calls)


def mistral_named(calls):
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)


def llama_functions(calls):
    return "\n".join(f"<function={name}>{arguments}</function>" for name, arguments in calls)


IN_TEXT = {  # forms that may follow text
    "hermes": (HERMES, each("<tool_call>\n{}\n</tool_call>", "\n")),
    "hermes, arguments first": (HERMES, arguments_first),
    "hermes, never ended": (HERMES, each("<tool_call>{}\n")),
    "llama3, python tag": (LLAMA3, each("<|python_tag|>{}", "; ", "parameters")),
    "llama3, functions": (LLAMA3, llama_functions),
    "mistral": (MISTRAL, as_list("[TOOL_CALLS]{}")),
    "mistral, named": (MISTRAL, mistral_named),
}
AT_START = {
    "llama3, bare": (LLAMA3, each("{}", ";", "parameters")),
    "bare lines": (GENERIC, each("{}", "\n")),
    "list": (GENERIC, as_list("{}")),
    "fenced list": (HERMES, as_list("```json\n{}\n```")),
    "fenced each": (HERMES, each("```\n{}\n```\n")),
    "tools": (HERMES, each("<tools>{}</tools>")),
    "tag in a fence": (GENERIC, each("```xml\n<tool_call>\n{}\n</tool_call>\n```", "\n")),
}
