"""Tools that are made from typed functions."""

from __future__ import annotations

import json
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.grammar.arguments import ArgumentChecker, InvalidArguments
from pagantic_common.tools import ToolContext, ToolSafety, tool


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Place(BaseModel):
    city: Annotated[str, Field(min_length=1)]
    country: str = "DE"


@tool(safety="read", idempotent=True, timeout_s=5)
def forecast(
    place: Place,
    day: date,
    schema: Literal["short", "long"] = "short",
    unit: Unit = Unit.CELSIUS,
    *,
    days: Annotated[int, Field(ge=1, le=10, description="from 1 to 10")] = 3,
    context: ToolContext,
) -> dict[str, Any]:
    """Tells the weather.

    Use it for plans.

    Args:
        place: Where.
        days: Not shown, for the annotation says it.
    """
    return {"city": place.city, "day": day, "schema": schema, "unit": unit, "days": days, "context": context}


def test_a_definition_is_read_from_the_function():
    definition = forecast.definition
    assert (definition.name, definition.description) == ("forecast", "Tells the weather.\n\nUse it for plans.")
    assert (definition.safety, definition.idempotent, definition.timeout_s) == (ToolSafety.READ, True, 5)


def test_the_schema_has_what_the_annotations_and_the_docstring_say():
    schema = json.loads(forecast.definition.parameters_json)
    assert schema["required"] == ["place", "day"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert list(properties) == ["place", "day", "schema", "unit", "days"]
    assert properties["place"] == {"$ref": "#/$defs/Place", "description": "Where."}
    assert properties["schema"] == {"default": "short", "enum": ["short", "long"], "type": "string"}
    assert properties["days"] == {
        "default": 3,
        "description": "from 1 to 10",
        "maximum": 10,
        "minimum": 1,
        "type": "integer",
    }
    assert schema["$defs"]["Unit"]["enum"] == ["celsius", "fahrenheit"]


def test_arguments_arrive_as_the_types_of_the_function():
    taken = forecast.parameters.read({"place": {"city": "Kiel"}, "day": "2026-05-01", "unit": "fahrenheit"})
    assert taken == {
        "place": Place(city="Kiel"),
        "day": date(2026, 5, 1),
        "schema": "short",
        "unit": Unit.FAHRENHEIT,
        "days": 3,
    }
    assert forecast.parameters.context_name == "context"


def test_a_tool_is_still_the_function():
    assert forecast(Place(city="Kiel"), date(2026, 5, 1), context=ToolContext())["days"] == 3
    assert forecast.__name__ == "forecast"


places = st.fixed_dictionaries({"city": st.text() | st.integers()}, optional={"country": st.text() | st.none()})
arguments = st.fixed_dictionaries(
    {"place": places | st.none()},
    optional={
        "day": st.dates().map(str) | st.text(max_size=3),
        "schema": st.sampled_from(["short", "long", "", None]),
        "days": st.integers(-1, 12) | st.floats(0, 4) | st.text(max_size=1),
        "unit": st.sampled_from(["celsius", "kelvin"]),
        "context": st.none(),
    },
)


@given(arguments)
def test_what_the_schema_allows_the_function_takes(given_arguments):
    """And what it refuses the function would refuse as well, so that neither check is looser."""
    text = json.dumps(given_arguments)
    try:
        parsed = ArgumentChecker("forecast", forecast.definition.parameters_json).parse(text)
    except InvalidArguments:
        return
    taken = forecast.parameters.read(parsed)
    assert isinstance(taken["place"], Place)


def no_annotation(city):
    """Tells."""


def no_docstring(city: str):
    pass


def unnamed(*cities: str):
    """Tells."""


def positional(city: str, /):
    """Tells."""


def unknown_type(city: Nowhere):  # noqa: F821 - on purpose
    """Tells."""


def no_json(city: object = ArgumentChecker, other: ArgumentChecker = None):
    """Tells."""


def yields(city: str):
    """Tells."""
    yield city


async def yields_later(city: str):
    """Tells."""
    yield city


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (yields, "'yields' yields: return a list instead"),
        (yields_later, "'yields_later' yields: return a list instead"),
        (no_annotation, "'city' of 'no_annotation' has no annotation"),
        (no_docstring, "'no_docstring' has no docstring"),
        (unnamed, "'cities' of 'unnamed' cannot be passed by its name"),
        (positional, "'city' of 'positional' cannot be passed by its name"),
        (unknown_type, "has an annotation that cannot be read"),
        (no_json, "has a parameter without JSON form"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_the_reason(function, reason):
    with pytest.raises(InvalidRequest, match=reason):
        tool(function)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"safety": "harmless"}, "it is one of none, read, write, external"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1e9}, "at most 86400"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"requires": ["git"]}, "requires has 'git': it takes network, binary:NAME and env:NAME"),
        ({"requires": "network:eth0"}, "requires has 'network:eth0'"),
        ({"requires": ["network", "binary:"]}, "requires has 'binary:'"),
        ({"requires": ["binary:../git"]}, "requires has 'binary:../git'"),
        ({"requires": ["env:A=1"]}, "requires has 'env:A=1'"),
        ({"name": "with space"}, "does not match"),
    ],
)
def test_options_are_checked(options, reason):
    with pytest.raises(InvalidRequest, match=reason):
        tool(**options)(forecast.function)


@tool
def plain(text: str) -> str:
    """Says it."""
    return text


def test_a_function_that_says_nothing_about_safety_may_do_anything():
    assert plain.definition.safety is ToolSafety.EXTERNAL


class Picky(BaseModel):
    text: str

    @pydantic.field_validator("text")
    @classmethod
    def refuse(cls, _text):
        raise ValueError("never right")


@tool
def picky(one: Picky) -> str:
    """Refuses."""
    return one.text


def test_a_validator_of_the_functions_own_refuses():
    with pytest.raises(pydantic.ValidationError):
        picky.parameters.read({"one": {"text": "a"}})
