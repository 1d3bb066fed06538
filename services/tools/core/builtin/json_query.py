"""Runs JMESPath queries with a limit on their work.

A short expression can double its input repeatedly (`[@,@][] | [@,@][] | ...`). Every intermediate value is therefore
charged to a common budget, and the limit on the length of a query limits the growth of each step. `join` can create a
text far larger than its arguments, so its size is checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions, signature
from jmespath.visitor import Options, TreeInterpreter

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json

MAX_QUERY_CHARS: Final = 500
MAX_DOCUMENT_BYTES: Final = 65_536  # in UTF-8
MAX_WORK: Final = 2_000_000  # characters and elements of all intermediate values; takes well under a second


class _BudgetExceeded(Exception):
    """The query exceeded its budget."""


class _BoundedFunctions(Functions):
    """The functions of JMESPath, with a `join` that creates no text beyond the budget."""

    def __init__(self, check: Callable[[int], None]) -> None:
        self._check = check

    @signature({"types": ["string"]}, {"types": ["array-string"]})
    def _func_join(self, separator: str, texts: Sequence[str]) -> str:
        self._check(len(separator) * len(texts) + sum(map(len, texts)))
        return separator.join(texts)


class _BoundedInterpreter(TreeInterpreter):
    """Interprets a query within a budget."""

    def __init__(self, budget: int) -> None:
        super().__init__(Options(custom_functions=_BoundedFunctions(self._check)))
        self._budget = budget

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        value = super().visit(node, *args, **kwargs)
        self._charge(value)
        return value

    def _charge(self, value: Any) -> None:
        """Subtract the size of a value from the budget."""
        pending = [value]
        while pending:
            item = pending.pop()
            self._budget -= 1
            if isinstance(item, str):
                self._budget -= len(item)
            elif isinstance(item, list):
                self._budget -= len(item)
                pending.extend(item)
            elif isinstance(item, dict):
                self._budget -= sum(map(len, item))
                pending.extend(item.values())
            self._check(0)

    def _check(self, amount: int) -> None:
        if amount > self._budget:
            raise _BudgetExceeded


def query_json(document_json: str, query: str) -> str:
    """Return the result of the query as compact JSON. Raises InvalidRequest with the reason."""
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidRequest(f"the query has {len(query)} characters, at most {MAX_QUERY_CHARS} are allowed")
    size_bytes = len(document_json.encode(errors="replace"))
    if size_bytes > MAX_DOCUMENT_BYTES:
        raise InvalidRequest(f"the document has {size_bytes} bytes, at most {MAX_DOCUMENT_BYTES} are allowed")
    try:
        document = parse_json(document_json)
    except JsonTextError as error:
        raise InvalidRequest(f"the document is not JSON: {error}") from None
    try:
        compiled = jmespath.compile(query)
        result = _BoundedInterpreter(MAX_WORK).visit(compiled.parsed, document)
        return dump_json(result).encode(errors="replace").decode()  # a lone surrogate cannot be sent
    except _BudgetExceeded:
        raise InvalidRequest("the query makes too much of the document: ask for less") from None
    except RecursionError:
        raise InvalidRequest("the query or the document is nested too deeply") from None
    except JMESPathError as error:
        reason = str(error).splitlines()[0][:200].encode(errors="replace").decode()
        raise InvalidRequest(f"the query is not valid: {reason}") from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        # The library checks the types of a function's arguments, but not all their values.
        raise InvalidRequest(f"the query does not fit the document ({type(error).__name__})") from None
