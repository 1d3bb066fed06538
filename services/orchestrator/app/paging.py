"""How many items a page of a list has."""

from __future__ import annotations

from pagantic_common.domain.errors import InvalidRequest

DEFAULT_PAGE, MAX_PAGE = 50, 500


def page_limit(wanted: int, default: int = DEFAULT_PAGE) -> int:
    """Return the number of items of a page, where 0 is the default; raises InvalidRequest."""
    if not 0 <= wanted <= MAX_PAGE:
        raise InvalidRequest(f"page_size is {wanted}: it must be between 0 and {MAX_PAGE}")
    return wanted or default
