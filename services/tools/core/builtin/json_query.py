"""Runs JMESPath queries with a limit on their work.

A short expression can double its input repeatedly (`[@,@][] | [@,@][] | ...`). The size of every intermediate value is
therefore charged to a common budget, and the limit on the length of a query limits the growth of each step.
"""

from __future__ import annotations

from typing import Any, Final

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json

MAX_QUERY_CHARS: Final = 500
MAX_DOCUMENT_CHARS: Final = 65_536
MAX_WORK: Final = 2_000_000  # characters and elements of all intermediate values; takes well under a second


class _BudgetExceeded(Exception):
    """The query exceeded its budget."""


class _BoundedInterpreter(TreeInterpreter):
    """Interprets a query within a budget."""

    def __init__(self, budget: int) -> None:
        super().__init__()
        self._budget = budget

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        value = super().visit(node, *args, **kwargs)
        self.charge(value)
        return value

    def charge(self, value: Any) -> None:
        """Subtract the size of a value from the budget."""
        pending = [value]
        while pending:
            item = pending.pop()
            self._budget -= 1
            if isinstance(item, str):
                self._budget -= len(item)
            elif isinstance(item, list):
                pending.extend(item)
                self._budget -= len(item)
            elif isinstance(item, dict):
                pending.extend(item.values())
                self._budget -= sum(map(len, item))
            if self._budget < 0:
                raise _BudgetExceeded


def query_json(document_json: str, query: str) -> str:
    """Return the result of the query as compact JSON. Raises ToolFailed with the reason."""
    if len(query) > MAX_QUERY_CHARS:
        raise ToolFailed(f"the query has {len(query)} characters, at most {MAX_QUERY_CHARS} are allowed")
    if len(document_json) > MAX_DOCUMENT_CHARS:
        raise ToolFailed(f"the document has {len(document_json)} characters, at most {MAX_DOCUMENT_CHARS} are allowed")
    try:
        document = parse_json(document_json)
    except JsonTextError as error:
        raise ToolFailed(f"the document is not JSON: {error}") from None
    try:
        compiled = jmespath.compile(query)
        result = _BoundedInterpreter(MAX_WORK).visit(compiled.parsed, document)
        return dump_json(result)
    except _BudgetExceeded:
        raise ToolFailed("the query makes too much of the document: ask for less") from None
    except RecursionError:
        raise ToolFailed("the query or the document is nested too deeply") from None
    except JMESPathError as error:
        raise ToolFailed(f"the query is not valid: {str(error).splitlines()[0][:200]}") from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        # The library checks the types of a function's arguments, but not all of their values.
        raise ToolFailed(f"the query does not fit the document ({type(error).__name__})") from None
