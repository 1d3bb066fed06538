"""Chooses how to search a collection, by what it has."""

from __future__ import annotations

from pagantic.context.v1 import collection_pb2
from pagantic_common.domain.errors import InvalidRequest


def best_retriever(collection: collection_pb2.Collection, *, hypothetical_document: bool = False) -> str:
    """Return "hybrid" for a collection with embeddings, else "bm25".

    A hypothetical document is searched by its embedding, so it needs a collection that has a model of embeddings, even
    if none is made yet; raises InvalidRequest for another one.
    """
    if collection.embedded_chunk_count:
        return "hybrid"
    if not hypothetical_document:
        return "bm25"
    if not collection.embedding_model:
        raise InvalidRequest(
            f"collection {collection.name!r} has no embeddings, which --hyde (hypothetical_document) needs: "
            f"`pagantic collections reembed {collection.name} MODEL`"
        )
    return "hybrid"
