"""The parameters of a function as JSON Schema, read from its signature and its docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import pydantic
from docstring_parser import Docstring
from pydantic import ConfigDict, Field, create_model
from pydantic.json_schema import GenerateJsonSchema

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.tools.call import ToolContext

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class _WithoutTitles(GenerateJsonSchema):
    """Omits titles derived from names, because a model reads the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic passes it
        """Return False, so that pydantic omits the title."""
        return False


class Parameters:
    """The parameters of a function, for which a model supplies arguments.

    Raises InvalidRequest if the function's parameters are unsuitable.

    Args:
        function: The function. Each parameter must have an annotation, and must accept its argument by name.
        text: The docstring. It describes the parameters whose annotations lack a description.

    Attributes:
        schema_json: JSON Schema of type object; other arguments are refused.
        context_name: The parameter that receives the ToolContext, or an empty string without this parameter.
    """

    def __init__(self, function: Callable[..., Any], text: Docstring) -> None:
        self.context_name = ""
        self._names: list[str] = []
        described = {parameter.arg_name: parameter.description or "" for parameter in text.params}
        fields: dict[str, Any] = {}
        for parameter, annotation in _annotated_parameters(function):
            if annotation is ToolContext:
                self.context_name = parameter.name
                continue
            # Field names are numbers, because a parameter may have a name that a field cannot have, such as `schema`.
            field = Field(alias=parameter.name, description=described.get(parameter.name) or None)
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"field{len(self._names)}"] = (_with_field(annotation, field), default)
            self._names.append(parameter.name)
        try:
            self._model = create_model(
                function.__name__, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
            )
            schema = self._model.model_json_schema(schema_generator=_WithoutTitles)
        except (pydantic.PydanticUserError, TypeError) as error:
            raise InvalidRequest(f"function {function.__name__!r} has a parameter without JSON form: {error}") from None
        del schema["title"]
        self.schema_json = dump_json(schema)

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert JSON values to the types of the function's parameters. See `read_json`."""
        return self.read_json(json.dumps(arguments))

    def read_json(self, arguments_json: str) -> dict[str, Any]:
        """Convert a JSON object to the values of the function's parameters, by name and including defaults.

        Raises pydantic.ValidationError if a value violates the schema or a validator of the function.
        """
        filled = self._model.model_validate_json(arguments_json)
        return {name: getattr(filled, f"field{index}") for index, name in enumerate(self._names)}


def _annotated_parameters(function: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    """Return the parameters of a function with their annotations. Raises InvalidRequest if they are unsuitable."""
    name = function.__name__
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidRequest(f"function {name!r} has an annotation that cannot be read: {error}") from None
    pairs = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED:
            raise InvalidRequest(f"parameter {parameter.name!r} of {name!r} cannot be passed by its name")
        if parameter.name not in hints:
            raise InvalidRequest(f"parameter {parameter.name!r} of {name!r} has no annotation: models need its type")
        pairs.append((parameter, hints[parameter.name]))
    return pairs


def _with_field(annotation: Any, field: Any) -> Any:
    """Return an annotation with additional field information. The information in the annotation takes precedence."""
    metadata = getattr(annotation, "__metadata__", None)
    if metadata is None:
        return Annotated[annotation, field]
    return Annotated[(annotation.__origin__, field, *metadata)]
