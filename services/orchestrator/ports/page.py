"""Pages of lists, and the limits on their length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pagantic_common.domain.errors import InvalidRequest

DEFAULT_PAGE, MAX_PAGE = 50, 500  # items per page

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """A page of a list, and the token of the next page. The token of the last page is empty."""

    items: list[ItemT]
    next_token: str = ""


def page_limit(wanted: int, default: int = DEFAULT_PAGE) -> int:
    """Return the number of items on a page. 0 selects the default.

    Raises InvalidRequest if the number is out of range.
    """
    if not 0 <= wanted <= MAX_PAGE:
        raise InvalidRequest(f"page_size is {wanted}: it must be between 0 and {MAX_PAGE}")
    return wanted or default
