"""Every list of every form has a largest number of items, and the check of a list ends at the first wrong item."""

import types
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

import gateway.http.serving  # noqa: F401
from gateway.http.anthropic.forms import MessagesForm
from gateway.http.ollama.forms import OllamaChatForm
from gateway.http.openai.forms import ChatForm, read_form
from gateway.http.openai.judging.decisions import DecisionForm, QuestionForm
from gateway.http.openai.responses.forms import ResponseForm
from gateway.http.pooling import RerankForm
from gateway.mcp.mapping.own_tools import PlanArguments
from gateway.web.forms import Items
from gateway.web.optional import MAX_FIELDS, OptionalFields
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.counting import LIMITS

BAD = object()


def kinds(kind=OptionalFields):
    for derived in kind.__subclasses__():
        yield derived
        yield from kinds(derived)


def unbounded(annotation, metadata=()):
    """Yield the lists and objects in a type that have no bound. An object of JSON may hold what the body may hold."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from unbounded(arguments[0], arguments[1:])
        return
    is_counted = any(isinstance(one, Items) for one in metadata)
    if origin in (list, set, tuple, dict) and not is_counted and annotation != dict[str, Any]:
        yield annotation
    if annotation in (list, set, tuple):
        yield annotation
    for argument in arguments:
        if origin in (Union, types.UnionType, list, dict):
            yield from unbounded(argument)


def test_every_list_and_object_of_every_form_is_bounded():
    found = [
        (kind.__name__, name, str(one))
        for kind in kinds()
        for name, field in kind.model_fields.items()
        for one in unbounded(field.annotation, field.metadata)
    ]
    assert found == []


@pytest.mark.parametrize("kind", [ChatForm, MessagesForm, OllamaChatForm])
def test_forms_have_as_many_messages_as_a_request(kind):
    message = {"role": "user", "content": "hi"}
    limit = LIMITS["pagantic.orchestrator.v1.SystemRequest.messages"]
    fields = {"model": "", "max_tokens": 1}
    assert len(read_form({**fields, "messages": [message] * limit}, kind).messages) == limit
    with pytest.raises(InvalidRequest, match="messages"):
        read_form({**fields, "messages": [message] * (limit + 1)}, kind)


@pytest.mark.parametrize(
    ("form", "path", "field"),
    [
        (ChatForm, "tools", "orchestrator.v1.SystemRequest.client_tools"),
        (ChatForm, "functions", "orchestrator.v1.SystemRequest.client_tools"),
        (MessagesForm, "tools", "orchestrator.v1.SystemRequest.client_tools"),
        (OllamaChatForm, "tools", "orchestrator.v1.SystemRequest.client_tools"),
        (ResponseForm, "tools", "orchestrator.v1.SystemRequest.client_tools"),
        (RerankForm, "documents", "orchestrator.v1.RerankRequest.texts"),
        (DecisionForm, "questions", "orchestrator.v1.Decisions.questions"),
        (QuestionForm, "choices", "orchestrator.v1.ChoiceQuestion.options"),
        (QuestionForm, "levels", "orchestrator.v1.ScoreQuestion.levels"),
        (PlanArguments, "steps", "orchestrator.v1.ExecutionPlan.steps"),
        (PlanArguments, "tools", "orchestrator.v1.SystemRequest.tools"),
    ],
)
def test_lists_of_forms_have_the_bounds_of_the_request(form, path, field):
    info = form.model_fields[path]
    notes = [*info.metadata, *(note for kind in get_args(info.annotation) for note in get_args(kind))]
    [bound] = [note.maximum for note in notes if isinstance(note, Items)]
    assert bound == LIMITS[f"pagantic.{field}"]


class Inner(OptionalFields):
    number: int


class Bounded(BaseModel):
    items: str | Annotated[list[Inner], Items(8, minimum=2)] | None = None
    table: Annotated[dict[str, int], Items(4)] = {}


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_list_has_an_error_at_most_for_its_length_or_its_first_wrong_item(good, bad):
    items = [{"number": 1}] * good + [{"number": BAD}] * bad
    if not bad and 2 <= good <= 8:
        assert len(Bounded(items=items).items) == good
        return
    with pytest.raises(ValidationError) as caught:
        Bounded(items=items)
    # The other form, a text, has an error of its own.
    assert caught.value.error_count() == 2


@given(st.integers(0, 40))
def test_an_object_is_counted_before_its_entries_are_checked(count):
    wrong = {f"k{number}": BAD for number in range(count)}
    if not count:
        assert Bounded(table={}).table == {}
        return
    with pytest.raises(ValidationError) as caught:
        Bounded(table=wrong)
    assert caught.value.error_count() <= 4
    if count > 4:
        assert "at most 4" in str(caught.value)


def test_the_schema_says_the_bounds():
    schema = Bounded.model_json_schema()["properties"]
    [items] = [one for one in schema["items"]["anyOf"] if one["type"] == "array"]
    assert (items["minItems"], items["maxItems"], schema["table"]["maxProperties"]) == (2, 8, 4)


def test_a_form_of_very_many_fields_is_refused_with_one_error():
    with pytest.raises(ValidationError) as caught:
        Inner(number=1, **{f"f{number}": 1 for number in range(MAX_FIELDS)})
    assert caught.value.error_count() == 1
    assert f"at most {MAX_FIELDS}" in str(caught.value)
