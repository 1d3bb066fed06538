"""Splits lists of objects into pages, as clients request them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gateway.http.bodies import MAX_PAGE_BYTES, AnswerShape, read_count
from gateway.http.operations import Parameter
from pagantic_common.domain.errors import InvalidRequest, NotFound

MAX_PAGE = 100
_PAGE = 20
ObjectT = TypeVar("ObjectT", bound=Mapping[str, Any])


class ListPage(AnswerShape):
    """The common fields of every page of a list. The ids are empty if the list has no objects."""

    object: Literal["list"]
    first_id: str
    last_id: str
    has_more: bool


class Deleted(AnswerShape):
    """The answer to the deletion of an object."""

    id: str
    object: str
    deleted: Literal[True]


def deleted(object_id: str, kind: str) -> Deleted:
    """Return the answer to the deletion of an object."""
    return {"id": object_id, "object": kind, "deleted": True}


def page_parameters(order: str) -> tuple[Parameter, ...]:
    """Return the parameters of a list with this default order."""
    return (
        Parameter("after", {"type": "string"}, "The id of the last object of the page before."),
        Parameter("limit", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most objects; 0 is 20."),
        Parameter("order", {"enum": ["asc", "desc"], "default": order}, "By time, up or down."),
    )


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The page that a query requests: `size` objects after the object with the id `after`, or from the beginning."""

    after: str
    size: int
    is_ascending: bool


def read_page_query(query: Mapping[str, str], *, order: str = "desc") -> PageQuery:
    """Read the parameters of a page. `order` applies if the query sets no order.

    Raises InvalidRequest if the limit or the order is invalid.
    """
    order = query.get("order") or order
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order is {order[:32]!r}: send 'asc' or 'desc'")
    size = read_count("limit", query.get("limit", ""), otherwise=_PAGE, most=MAX_PAGE) or _PAGE
    return PageQuery(query.get("after", ""), size, is_ascending=order == "asc")


def page_of(items: Sequence[Mapping[str, Any]], query: Mapping[str, str], *, order: str = "desc") -> dict[str, Any]:
    """Return the page of a list that a query requests. `order` applies if the query sets no order.

    Raises InvalidRequest if the limit or the order is invalid, or NotFound if the item is unknown.
    """
    page = read_page_query(query, order=order)
    rest = objects_behind(items, page)
    return list_of(rest[: page.size], has_more=page.size < len(rest))


def objects_behind(items: Sequence[ObjectT], page: PageQuery) -> Sequence[ObjectT]:
    """Return the objects of a list that follow the page's `after`, in the order of the page.

    Raises NotFound if the item `after` is unknown.
    """
    ordered = items if page.is_ascending else items[::-1]
    if not page.after:
        return ordered
    for index, item in enumerate(ordered):
        if item["id"] == page.after:
            return ordered[index + 1 :]
    raise NotFound(f"there is no item {page.after[:128]!r} in this list")


async def page_within(objects: AsyncGenerator[tuple[ObjectT, int], None], size: int) -> dict[str, Any]:
    """Return a page of the first objects, at most `size`. Each object comes with its size in bytes.

    The page ends with the object that takes it beyond MAX_PAGE_BYTES. The generator is closed, because it may hold
    objects that were read but do not fit.
    """
    page: list[Mapping[str, Any]] = []
    page_bytes = 0
    async with aclosing(objects):
        async for item, item_bytes in objects:
            if len(page) == size or page_bytes > MAX_PAGE_BYTES:
                return list_of(page, has_more=True)
            page.append(item)
            page_bytes += item_bytes
    return list_of(page)


def list_of(objects: Sequence[Mapping[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """Return a page of objects in the list format of the API."""
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else ("", "")
    return {"object": "list", "data": list(objects), "first_id": first, "last_id": last, "has_more": has_more}
