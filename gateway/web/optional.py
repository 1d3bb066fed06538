"""Requests whose optional fields count as absent if they are null or empty, as clients in many languages send them."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticCustomError

_EMPTY: tuple[Any, ...] = ("", [], {})
MAX_FIELDS = 256  # An object with an unknown field produces an error for each unknown field.


class OptionalFields(BaseModel):
    """A JSON object in which null counts as absent, as does an empty text, list or object in an optional field.

    EMPTY_IS_A_VALUE names the fields, as JSON spells them, whose specification gives null or an empty value a meaning.
    An undeclared field may enable a feature with an empty object, so only null counts as absent for it.
    """

    EMPTY_IS_A_VALUE: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _leave_out_absent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) > MAX_FIELDS:
            raise PydanticCustomError(
                "too_long",
                "the object has {count} fields: at most {maximum} are permitted",
                {"count": len(value), "maximum": MAX_FIELDS},
            )
        optional = _optional_names(cls)
        return {
            name: content
            for name, content in value.items()
            if name in cls.EMPTY_IS_A_VALUE or not (content is None or (name in optional and content in _EMPTY))
        }


@cache
def _optional_names(kind: type[OptionalFields]) -> frozenset[str]:
    fields = kind.model_fields.items()
    return frozenset(field.alias or name for name, field in fields if not field.is_required())
