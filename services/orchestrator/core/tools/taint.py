r"""Finds call arguments with text that neither the caller nor the deployment wrote.

Theory of operation. Tool results and retrieved documents are untrusted, because their authors may want to cause a call.
The caller's messages and the system prompt are trusted. Texts are compared word by word in NFKC, without case and
invisible characters. Numbers are compared by value. A value in the arguments is tainted by an untrusted text that

    1. contains the value between other words. A tool of class WRITE accepts several plain words from any text, because
       plain words are content and not a target; or
    2. shares an identifier with the value: a word with a digit, @, /, \, _ or an inner dot, such as an address, or the
       host in a URL; or
    3. contains the letters and digits of the value in another grouping, if there are at least eight, as in an account
       number.

The model's answers of earlier turns may repeat untrusted texts, so rules 2 and 3 also apply to these answers.

A value is not tainted if the caller also wrote it, if the tool's schema contains it, or if it is a whole field of a
structured result, because then the model looked it up. The fields of a result do not count if the call had tainted
arguments. A looked-up number below 1000 may also appear in other texts by chance. Texts beyond MAX_TEXT_CHARS are not
compared, and then every call counts as tainted.

Source: spans instead of whole contexts, after CaMeL (Debenedetti et al., 2025), in which values carry their origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagantic_common.domain.messages import Message, Role, ToolDefinition, ToolSafety
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.orchestrator.core.tools.asking import NAME as ASK_USER
from services.orchestrator.core.tools.compared_text import (
    between_breaks,
    grouped_of,
    hosts_of,
    identifiers_of,
    is_plain,
    join_words,
    words_of,
)
from services.orchestrator.core.tools.document_search import NAME as DOCUMENT_SEARCH

MAX_SPANS = 20
MAX_SPAN_CHARS = 200
MAX_CHANCE_DIGITS = 3
MAX_FIELD_WORDS = 12
MAX_TEXT_CHARS = 2 * 1024 * 1024
MIN_GROUPED_CHARS, MAX_GROUPED_CHARS = 8, 64
CONTEXT = "the retrieved context"
ANSWER = "an earlier answer"


@dataclass(frozen=True, slots=True)
class TaintedSpan:
    """Text from `source` in an argument. `argument` is the path of the argument."""

    argument: str
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class _Source:
    """The texts from one source.

    `texts` contains the words of each text, with each text between line breaks. If `is_data` is set, the texts may be
    fields. `identifiers` contains the identifiers and their parts, and `grouped` the letters and digits of each text.
    """

    name: str
    texts: str
    identifiers: frozenset[str]
    grouped: str
    is_data: bool

    def taint_of(self, value: _Value) -> Sequence[str]:
        """Return the parts of a value that come from this source: the whole value, or some of its identifiers."""
        if self._mentions(value.joined) and not value.is_content:
            return (value.text,)
        if self.is_data and between_breaks(value.joined) in self.texts:
            return ()
        if value.grouped and value.grouped in self.grouped:
            return (value.text,)
        return [word for word in value.identifiers if word in self.identifiers]

    def _mentions(self, joined: str) -> bool:
        """Return whether the source contains a sequence of words outside looked-up fields."""
        if not self.is_data:
            return joined in self.texts
        return self.texts.count(joined) > self.texts.count(between_breaks(joined))


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of an argument.

    `is_content` marks plain words, which may occur in any text. `identifiers` and `grouped` must not occur in any
    untrusted text. `grouped` contains the letters and digits of an identifier that may be written in groups.
    """

    text: str
    joined: str
    identifiers: Sequence[str]
    grouped: str
    is_content: bool


@dataclass(slots=True)
class Provenance:
    """Tracks the authors of the texts of a run. Results are added in the order in which they arrive."""

    _trusted: list[str] = field(default_factory=list)
    _trusted_words: set[str] = field(default_factory=set)
    _trusted_grouped: list[str] = field(default_factory=list)
    _untrusted: list[_Source] = field(default_factory=list)
    _fields: set[str] = field(default_factory=set)
    _calls: set[str] = field(default_factory=set)
    _chars: int = 0

    def trust(self, text: str) -> None:
        """Add a text written by the caller or by the deployment."""
        if not self._take(text):
            return
        words = words_of(text)
        self._trusted.append(join_words(words))
        self._trusted_words.update(identifiers_of(words))
        self._trusted_grouped.append(grouped_of(text))

    def trust_values(self, document: str) -> None:
        """Trust the names and values of a JSON document written by the caller."""
        for _, value, _ in _parts(_parsed(document)):
            self.trust(value)

    def distrust(self, text: str, source: str, *, is_data: bool = False) -> None:
        """Add untrusted text. If the text is JSON and `is_data` is set, its fields count as looked-up data."""
        if not self._take(text):
            return
        values = [value for _, value, _ in _parts(_parsed(text))]
        lists = [words_of(value) for value in values]
        texts = [join_words(words) for words in lists]
        if is_data:
            self._fields.update(texts)
        identifiers = [word for words in lists for word in identifiers_of(words)]
        searched = frozenset([*identifiers, *hosts_of(identifiers)])
        grouped = "\n".join(map(grouped_of, values))
        self._untrusted.append(_Source(source, "".join(map(between_breaks, texts)), searched, grouped, is_data))

    def _take(self, text: str) -> bool:
        self._chars += len(text)
        return self._chars <= MAX_TEXT_CHARS

    def distrust_answer(self, text: str) -> None:
        """Add the model's answer of an earlier turn, which may repeat a document that has left the conversation.

        Only the identifiers in the answer count, because the model wrote its plain words. Looked-up fields count as
        data in the answer, too.
        """
        if not text or not self._take(text):
            return
        words = [word for word in self._without_fields(words_of(text)) if join_words([word]) not in self._fields]
        identifiers = identifiers_of(words)
        searched = frozenset([*identifiers, *hosts_of(identifiers)])
        self._untrusted.append(_Source(ANSWER, "", searched, grouped_of(" ".join(words)), is_data=False))

    def add_history(self, messages: Sequence[Message]) -> None:
        """Add the messages before a run. The model's answers among them may repeat text of any author."""
        self.add_messages(messages)
        for message in messages:
            if message.role is Role.ASSISTANT:
                self.distrust_answer(message.content)

    def add_messages(self, messages: Iterable[Message]) -> None:
        """Add messages of a conversation. User messages are trusted; tool results are untrusted."""
        arguments: dict[str, str] = {}
        for message in messages:
            arguments |= {call.id: call.arguments_json for call in message.tool_calls}
            if message.role is Role.TOOL:
                call_id = message.tool_call_id
                self.add_result(message.name, call_id, arguments.get(call_id, ""), message.content)
            elif message.role is not Role.ASSISTANT:
                self.trust(message.content)

    def add_result(self, tool: str, call_id: str, arguments_json: str, result: str) -> None:
        """Add the result of a call, unless it was already added.

        The result is data, unless the call itself was tainted, or the result is an answer of a user or whole documents.
        """
        if call_id in self._calls:
            return
        self._calls.add(call_id)
        is_tainted = self.find_spans(arguments_json, ToolDefinition(tool, "", "", safety=ToolSafety.WRITE))
        is_data = tool not in (DOCUMENT_SEARCH, ASK_USER) and not is_tainted
        self.distrust(result, f"{tool} ({call_id})", is_data=is_data)

    def find_spans(self, arguments_json: str, tool: ToolDefinition) -> tuple[TaintedSpan, ...]:
        """Return the tainted spans of a call's arguments, at most 20.

        Arguments that are not JSON are compared as a single text.
        """
        if self._chars > MAX_TEXT_CHARS:
            return (TaintedSpan("", "a conversation that is too long to be compared", ""),)
        if not self._untrusted:
            return ()
        schema_words = {join_words(words_of(word)) for word in _words_of_schema(_parsed(tool.parameters_json))}
        spans: dict[TaintedSpan, None] = {}
        for path, text, is_name in _parts(_parsed(arguments_json)):
            words = words_of(text)
            if join_words(words) not in schema_words and not (is_name and text.isidentifier()):
                spans |= dict.fromkeys(self._spans_of_value(path, text, words, tool))
            if len(spans) >= MAX_SPANS:
                break
        return tuple(spans)[:MAX_SPANS]

    def _spans_of_value(self, path: str, text: str, words: Sequence[str], tool: ToolDefinition) -> list[TaintedSpan]:
        if not words or self._is_known(words):
            return []
        own = identifiers_of(self._without_fields(words))
        identifiers = [word for word in own if word not in self._trusted_words]
        is_content = tool.safety is ToolSafety.WRITE and is_plain(words)
        value = _Value(text, join_words(words), identifiers, self._foreign_group(text), is_content)
        return [
            TaintedSpan(path, source.name, part[:MAX_SPAN_CHARS])
            for source in self._untrusted
            for part in source.taint_of(value)
        ]

    def _is_known(self, words: Sequence[str]) -> bool:
        """Return whether the caller wrote a value, or whether it is a small, looked-up number."""
        joined = join_words(words)
        if any(joined in text for text in self._trusted):
            return True
        return _is_small_number(words) and joined in self._fields

    def _without_fields(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the words of a value, except fields of several words such as a street with its number."""
        position = 0
        while position < len(words):
            length = self._field_length(words[position : position + MAX_FIELD_WORDS])
            if not length:
                yield words[position]
            position += length or 1

    def _field_length(self, words: Sequence[str]) -> int:
        """Return the length, in words, of the longest field at the start of the words.

        Returns 0 if the words do not start with a field of several words.
        """
        lengths = range(len(words), 1, -1)
        return next((length for length in lengths if join_words(words[:length]) in self._fields), 0)

    def _foreign_group(self, text: str) -> str:
        """Return the letters and digits of a value that may be an identifier written in groups.

        Returns an empty string for any other value, and for a value that the caller wrote.
        """
        grouped = grouped_of(text)
        is_identifier = MIN_GROUPED_CHARS <= len(grouped) <= MAX_GROUPED_CHARS and any(map(str.isdigit, grouped))
        if not is_identifier or any(grouped in text for text in self._trusted_grouped):
            return ""
        return grouped


def _is_small_number(words: Sequence[str]) -> bool:
    return len(words) == 1 and len(words[0]) <= MAX_CHANCE_DIGITS and words[0].isdecimal()


def _parsed(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is not JSON."""
    try:
        return parse_json(text)
    except JsonTextError:
        return text


def _parts(value: Any, path: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield the names, strings and numbers of a JSON value, each with its path and whether it is a name."""
    if isinstance(value, dict):
        for name, inner in value.items():
            inner_path = f"{path}.{name}".removeprefix(".")
            yield inner_path, name, True
            yield from _parts(inner, inner_path)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _parts(inner, f"{path}[{index}]")
    elif value is not None and not isinstance(value, bool):
        yield path, str(value), False


def _words_of_schema(schema: Any) -> Iterator[str]:
    """Yield the names and the values that a schema lists."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _words_of_schema(inner)
    if not isinstance(schema, dict):
        return
    for listed in (schema.get("enum"), [schema.get("const")], schema.get("properties")):
        if isinstance(listed, list | dict):
            yield from (value for value in listed if isinstance(value, str))
    for inner in schema.values():
        yield from _words_of_schema(inner)
