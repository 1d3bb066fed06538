"""The sources of stored documents."""

from __future__ import annotations

from sqlalchemy import Connection, select

from pagantic_common.domain.errors import NotFound
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.collections import find_row
from services.context.adapters.store.schema import documents
from services.context.core.document import CollectionKey


class SqlSources:
    """Implements SourceStore."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    async def list_sources(self, key: CollectionKey, prefix: str) -> list[str]:
        """Return the sources that begin with a prefix; empty for an unknown collection."""
        return await self._access.read(lambda db: _list_sources(db, key, prefix))


def _list_sources(db: Connection, key: CollectionKey, prefix: str) -> list[str]:
    try:
        collection_id = find_row(db, key).id
    except NotFound:
        return []
    mine = documents.c.collection_id == collection_id
    below = documents.c.source.startswith(prefix, autoescape=True)  # SQLite's LIKE ignores case
    found = db.execute(select(documents.c.source).where(mine & below)).scalars()
    return [source for source in found if source.startswith(prefix)]
