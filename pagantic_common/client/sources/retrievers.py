"""Chooses the retriever for a collection according to its embeddings."""

from __future__ import annotations

from pagantic.context.v1 import collection_pb2
from pagantic_common.domain.errors import InvalidRequest


def best_retriever(collection: collection_pb2.Collection, *, hypothetical_document: bool = False) -> str:
    """Return "hybrid" for a collection with embeddings, and "bm25" for any other collection.

    The search for a hypothetical document uses the document's embedding. It therefore needs a collection with an
    embedding model, even before any chunk is embedded. Raises InvalidRequest if the collection has no embedding model.
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
