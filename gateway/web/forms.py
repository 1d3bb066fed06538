"""Limits the lists and objects in requests, so that checking a request takes little time and memory.

Otherwise, a list with 100,000 invalid items would produce an error for each item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema


@dataclass(frozen=True, slots=True)
class Items:
    """Annotates a list or an object with limits on its item count, and stops checking a list at its first invalid item.

    Args:
        maximum: The largest number of items.
        minimum: The smallest number of items.
    """

    maximum: int
    minimum: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Add the bounds to the schema of the list or object. Raises TypeError for any other type."""
        schema = cast("dict[str, Any]", handler(source))
        if schema["type"] not in ("list", "dict"):
            raise TypeError(f"Items cannot bound a {schema['type']}")
        schema["max_length"] = self.maximum
        if self.minimum:
            schema["min_length"] = self.minimum
        if schema["type"] == "list":
            schema["fail_fast"] = True
        # The items are counted beforehand, because pydantic counts the entries of an object after checking them, and
        # would report an invalid item of a list that is too long.
        return core_schema.no_info_before_validator_function(self._check_count, cast("CoreSchema", schema))

    def _check_count(self, value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > self.maximum:
            kind = "List" if isinstance(value, list) else "Dictionary"
            lengths = {"field_type": kind, "max_length": self.maximum, "actual_length": len(value)}
            raise PydanticKnownError("too_long", lengths)
        return value
