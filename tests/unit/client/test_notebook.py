"""What a notebook shows of results: everything that the text has, and texts of models as nothing but text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import IPython
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter

from pagantic.common.v1 import correlation_pb2, error_pb2
from pagantic.context.v1 import collection_pb2, file_pb2
from pagantic.orchestrator.v1 import decision_pb2, event_pb2, execution_pb2
from pagantic_common.client import IngestedFiles, StructuredResult, Timeline, watch
from pagantic_common.client.notebook import load_ipython_extension
from pagantic_common.client.notebook.live import LiveOutput
from pagantic_common.client.notebook.markup import bounded
from pagantic_common.client.notebook.responses import response_bundle
from pagantic_common.client.tables import timeline_rows
from pagantic_common.codec.messages import duration_to_proto
from pagantic_common.domain.errors import ErrorCode, Internal, PaganticError

TAGS = {"bdi", "blockquote", "details", "div", "mark", "pre", "rect", "span", "strong", "style", "summary", "svg"}
TAGS |= {"table", "tbody", "td", "th", "thead", "tr"}
ATTRIBUTES = {"aria-hidden", "class", "dir", "fill", "height", "opacity", "rx", "title", "viewbox", "width", "x"}
HOSTILE = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[2J<img src=x onerror=alert(2)>\u202e'\"&amp;</pre></div>"
TEXTS = st.one_of(st.text(), st.just(HOSTILE), st.text(alphabet="<>&\"'/a \x1b[]\x9b\u202e\n"))


class Seen(HTMLParser):
    """The texts of the elements of an output, after it has been checked that nobody else's markup is in it."""

    def __init__(self, html):
        super().__init__()
        self.texts, self.rows, self.bars, self.open = {}, [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS
        assert {name for name, _ in attributes} <= ATTRIBUTES
        if tag == "rect":
            self.bars.append(dict(attributes))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.texts.setdefault(tag, []).append("")
        self.open.append((tag, len(self.texts[tag]) - 1))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for tag, position in self.open:
            self.texts[tag][position] += data
            if tag in ("td", "th"):
                self.rows[-1][-1] += data


def html_of(response):
    return response_bundle(response)["text/html"]


def is_plain(text):
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


@given(TEXTS)
def test_an_answer_is_shown_as_nothing_but_text(answer):
    bundle = response_bundle(execution_pb2.SystemResponse(content=answer, reasoning=answer))
    shown = Seen(bundle["text/html"]).texts.get("pre", [])
    assert shown == [bounded(answer)] * (2 if answer else 0)
    assert is_plain(bundle["text/html"])
    assert is_plain(bundle["text/plain"])


def everywhere(text):
    """A response with the same text in each place that a model, a tool or a document fills."""
    error = error_pb2.SystemError(code=error_pb2.ERROR_CODE_TOOL_TIMEOUT, message=text)
    record = execution_pb2.ToolCallRecord(name=text, arguments_json=text, result=text)
    citation = execution_pb2.Citation(claim=text, document=text, quote=text)
    return execution_pb2.SystemResponse(
        request_id=text,
        content=text,
        reasoning=text,
        structured_output_json=text,
        error=error,
        tool_calls_made=[record],
        candidates=[execution_pb2.VoteCandidate(content=text)],
        citations=[citation],
        decisions=[decision_pb2.Decision(name=text)],
        warnings=[error_pb2.Warning(message=text)],
    )


@given(TEXTS)
def test_no_field_of_a_response_brings_markup_or_control_characters(text):
    bundle = response_bundle(everywhere(text))
    Seen(bundle["text/html"])
    assert is_plain(bundle["text/html"])
    assert is_plain(bundle["text/plain"])


@pytest.mark.parametrize("character", ["<", "\x90", "\n"])
def test_ten_megabytes_are_cut_and_their_length_is_said(character):
    bundle = response_bundle(everywhere(character * 10_000_000))
    assert "of 10,000,000 characters" in bundle["text/html"]
    assert "of 10,000,000 characters" in bundle["text/plain"]
    assert sum(map(len, bundle.values())) < 1_000_000


LAYERS = st.sampled_from(["orchestrator", "inference", "constraint", "context", "rerank", "tools", "new <service>"])
CODES = st.sampled_from([None, error_pb2.ERROR_CODE_TOOL_TIMEOUT, error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED])


@st.composite
def some_events(draw):
    events, at_ns = [], 10**18
    for sequence in range(1, draw(st.integers(1, 12)) + 1):
        at_ns += draw(st.integers(0, 10**10))
        event = event_pb2.ExecutionEvent(sequence=sequence, layer=draw(LAYERS), action=draw(TEXTS))
        event.timestamp.FromNanoseconds(at_ns)
        event.transition.reason = draw(TEXTS)
        event.correlation.CopyFrom(correlation_pb2.CorrelationContext(caused_by=draw(TEXTS)))
        if (duration_s := draw(st.none() | st.floats(0, 1e4))) is not None:
            event.duration.CopyFrom(duration_to_proto(duration_s))
        if (code := draw(CODES)) is not None:
            event.error.code = code
        events.append(event)
    return Timeline(events)


@given(some_events())
def test_the_picture_of_a_timeline_has_every_row_of_its_text(timeline):
    seen = Seen(timeline._repr_html_())
    rows = timeline_rows(timeline)
    assert len(seen.rows) == len(rows) + 1
    for shown, row in zip(seen.rows[1:], rows, strict=True):
        sequence, offset, layer, action, what, caused_by, took, error = map(bounded, row.cells)
        assert shown[:4] == [sequence, offset, layer, action]
        assert shown[4].startswith(what)
        assert caused_by in shown[4]
        assert error in shown[4]
        assert shown[6] == took
    assert all(0 <= float(bar.get("x", 0)) + float(bar["width"]) <= 220.1 for bar in seen.bars)


def test_a_bar_ends_when_its_event_ends():
    first, last = event_pb2.ExecutionEvent(sequence=1), event_pb2.ExecutionEvent(sequence=2, layer="inference")
    first.timestamp.FromSeconds(100)
    last.timestamp.FromSeconds(104)
    last.duration.FromSeconds(1)
    (*_, drawn) = Seen(Timeline([first, last])._repr_html_()).bars
    assert (float(drawn["x"]), float(drawn["width"])) == (165, 55)


def test_a_long_timeline_says_how_many_events_are_left_out():
    bundle, _ = DisplayFormatter().format(Timeline([event_pb2.ExecutionEvent()] * 1_234))
    assert len(Seen(bundle["text/html"]).rows) == 1_001
    assert "234 later events are not shown" in bundle["text/html"]
    assert "234 later events are not shown" in bundle["text/plain"]


def test_an_empty_timeline_is_shown():
    assert "0 events" in Timeline()._repr_html_()


def test_votes_are_bars_with_counts_and_the_chosen_value_is_marked():
    values = ['"high"', '"low"', '"high"', '"high"']
    candidates = [execution_pb2.VoteCandidate(structured_output_json=value) for value in values]
    response = execution_pb2.SystemResponse(candidates=candidates, structured_output_json='"high"', confidence=0.75)
    seen = Seen(html_of(response))
    assert seen.rows == [['✓ "high"', "", "3 of 4"], ['"low"', "", "1 of 4"]]
    drawn = [float(bar["width"]) for bar in seen.bars if bar["fill"] != "currentColor"]
    assert drawn == [120, 40]
    assert "confidence 0.75" in "".join(seen.texts["div"])


def test_claims_are_marked_and_their_quotes_shown():
    citations = [
        execution_pb2.Citation(
            claim="It rains.", source=2, document="w<1>.pdf", page=3, start=5, end=9, quote="rain & so"
        ),
        execution_pb2.Citation(claim="It snows.", source=1, document="s.txt", quote="snow"),
    ]
    response = execution_pb2.SystemResponse(content="It rains. [2] It snows. [1]", citations=citations)
    seen = Seen(html_of(response))
    assert seen.texts["mark"] == ["It rains.", "It snows."]
    assert seen.texts["pre"] == ["It rains. [2] It snows. [1]"]
    assert seen.texts["blockquote"] == ["rain & so", "snow"]
    assert "[2] w<1>.pdf, page 3, characters 5 to 9" in seen.texts["div"]


def test_a_failure_shows_its_code_and_whether_to_try_again():
    error = error_pb2.SystemError(code=error_pb2.ERROR_CODE_TOOL_TIMEOUT, message="too slow", retryable=True)
    bundle = response_bundle(execution_pb2.SystemResponse(error=error))
    assert "TOOL_TIMEOUT too slow (the same request may succeed later)" in Seen(bundle["text/html"]).texts["div"]
    assert bundle["text/plain"].startswith("TOOL_TIMEOUT: too slow")


def test_a_structured_answer_is_shown_as_json_with_its_value_as_text():
    response = execution_pb2.SystemResponse(structured_output_json='{"city":"Zürich"}')
    bundle, _ = DisplayFormatter().format(StructuredResult({"city": "Zürich"}, response))
    assert bundle["text/plain"] == "{'city': 'Zürich'}"
    assert Seen(bundle["text/html"]).texts["pre"] == ['{\n  "city": "Zürich"\n}']


@pytest.mark.parametrize("document", ['{"a":"\\ud800"}', '{"a":', "NaN"])
def test_a_document_that_cannot_be_written_again_is_shown_as_it_came(document):
    html = html_of(execution_pb2.SystemResponse(structured_output_json=document))
    assert Seen(html).texts["pre"] == [document]
    assert html.encode()


def test_an_ingest_shows_its_counts_and_its_failures():
    summary = file_pb2.FilesSummary(added=2, collection=collection_pb2.Collection(name="docs", document_count=2))
    error = error_pb2.SystemError(code=error_pb2.ERROR_CODE_CONFIG_INVALID, message="no <text>")
    failed = [file_pb2.FileResult(source=f"{number}.pdf", error=error) for number in range(30)]
    bundle, _ = DisplayFormatter().format(IngestedFiles(summary, failed))
    seen = Seen(bundle["text/html"])
    assert seen.rows[0] == ["0.pdf", "CONFIG_INVALID", "no <text>"]
    assert "10 more failed" in seen.texts["div"]
    assert "2 added, 0 replaced, 0 unchanged, 30 failed; now 2 documents" in bundle["text/plain"]


def test_messages_show_themselves_once_the_extension_is_loaded():
    formatter = DisplayFormatter()
    response = execution_pb2.SystemResponse(content="hi")
    assert "text/html" not in formatter.format(response)[0]
    load_ipython_extension(SimpleNamespace(display_formatter=formatter))
    state = execution_pb2.ExecutionState(current=execution_pb2.LIFECYCLE_STATE_COMPLETE)
    execution = execution_pb2.Execution(request_id="r1", mode=execution_pb2.MODE_CHAT, state=state, response=response)
    decision = decision_pb2.Decision(name="angry", predicate=decision_pb2.PredicateAnswer(probability=0.9))
    for shown, text in ((response, "hi"), (execution, "execution r1: CHAT, COMPLETE"), (decision, "angry")):
        bundle, _ = formatter.format(shown)
        assert text in bundle["text/plain"]
        assert text in bundle["text/html"]


def events_of(response):
    return [event_pb2.ExecutionEvent(sequence=1), event_pb2.ExecutionEvent(completed={"response": response})]


def test_what_is_drawn_of_a_hostile_answer_is_nothing_but_text(monkeypatch):
    drawn = []
    monkeypatch.setattr(LiveOutput, "is_due", lambda _: True)
    monkeypatch.setattr(LiveOutput, "draw", lambda _, text, html: drawn.append((text, html)))
    delta = event_pb2.ExecutionEvent(content_delta=event_pb2.ContentDelta(text=HOSTILE))
    begun, completed = events_of(execution_pb2.SystemResponse())
    watch([begun, delta, completed])
    assert "alert(1)" in drawn[1][0]
    for text, html in drawn:
        assert is_plain(text)
        Seen(html)


@pytest.mark.parametrize(
    ("shell", "is_due"), [(None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=object()), True)]
)
def test_only_a_shell_with_a_kernel_is_drawn_in(monkeypatch, shell, is_due):
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    assert LiveOutput().is_due() is is_due


def test_a_watched_stream_is_closed_when_its_cell_is_interrupted(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    closed = []

    def stream():
        try:
            yield from events_of(execution_pb2.SystemResponse())
        finally:
            closed.append(True)

    monkeypatch.setattr(LiveOutput, "is_due", interrupt)
    watched = stream()
    with pytest.raises(KeyboardInterrupt):
        watch(watched)
    assert closed


def test_watching_returns_the_response_and_raises_its_error():
    assert watch(events_of(execution_pb2.SystemResponse(content="hi"))).content == "hi"
    error = error_pb2.SystemError(code=error_pb2.ERROR_CODE_TOOL_TIMEOUT)
    with pytest.raises(PaganticError) as caught:
        watch(events_of(execution_pb2.SystemResponse(error=error)))
    assert caught.value.code is ErrorCode.TOOL_TIMEOUT
    with pytest.raises(Internal, match="without a response"):
        watch([event_pb2.ExecutionEvent(sequence=1)])
