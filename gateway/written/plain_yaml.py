"""Parses YAML restricted to the values of JSON, so that `no` and a date are strings."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from gateway.written.errors import WrittenError
from pagantic_common.domain.text.json_text import parse_json

_NUMBERS_AND_WORDS = (
    ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), "tf"),
    ("tag:yaml.org,2002:null", re.compile(r"^(?:null|~|)$"), ["n", "~", ""]),
    ("tag:yaml.org,2002:int", re.compile(r"^-?(?:0|[1-9][0-9]*)$"), "-0123456789"),
    ("tag:yaml.org,2002:float", re.compile(r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$"), "-0123456789"),
)


class _Loader(yaml.SafeLoader):
    """Reads the values of YAML 1.2's JSON schema. Aliases, which can multiply content, are rejected."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node. Raises WrittenError for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise WrittenError(f"line {self.line + 1}: aliases are not taken: write the value again")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Raises WrittenError if a key is repeated or is not a string."""
        mapping = super().construct_mapping(node, deep=deep)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if not all(isinstance(key, str) for key in keys):
            raise WrittenError(f"line {node.start_mark.line + 1}: keys are texts: put others into quotes")
        if len(mapping) < len(keys):
            raise WrittenError(f"line {node.start_mark.line + 1}: a mapping has the same key twice")
        return mapping


for _tag, _pattern, _first in _NUMBERS_AND_WORDS:
    _Loader.add_implicit_resolver(_tag, _pattern, list(_first))


def parse_yaml(text: str) -> Any:
    """Parse YAML into JSON values within the limits for JSON. Raises WrittenError, with the line if it is known."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
        return parse_json(json.dumps(value), is_rewritable=True)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise WrittenError(f"it is not YAML: line {line}: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, WrittenError):
            raise
        raise WrittenError(f"it is not YAML: {str(error).splitlines()[0]}") from None
