"""Context messages <-> the domain."""

from __future__ import annotations

from pagantic.common.v1 import message_pb2
from pagantic.context.v1 import collection_pb2, policy_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic_common.codec.chunks import chunk_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.context.app.building import BuiltContext
from services.context.app.retrieval import RetrievalPolicy, Retriever
from services.context.core.document import Collection, Document
from services.context.ports import IngestResult

_RETRIEVER_FROM_PROTO: dict[int, Retriever] = {
    policy_pb2.RETRIEVER_UNSPECIFIED: Retriever.BM25,
    policy_pb2.RETRIEVER_BM25: Retriever.BM25,
    policy_pb2.RETRIEVER_KEYWORD: Retriever.KEYWORD,
    policy_pb2.RETRIEVER_VECTOR: Retriever.VECTOR,
    policy_pb2.RETRIEVER_HYBRID: Retriever.HYBRID,
}


def document_from_proto(document: collection_pb2.Document) -> Document:
    """Decode a document."""
    return Document(source=document.source, content=document.content, metadata_json=document.metadata_json)


def collection_to_proto(collection: Collection) -> collection_pb2.Collection:
    """Encode a collection."""
    encoded = collection_pb2.Collection(
        name=collection.name, document_count=collection.document_count, chunk_count=collection.chunk_count
    )
    encoded.created_at.FromDatetime(collection.created_at)
    return encoded


def ingest_result_to_proto(result: IngestResult) -> pb.IngestResponse:
    """Encode what an ingest did."""
    return pb.IngestResponse(
        collection=collection_to_proto(result.collection),
        added=result.added,
        replaced=result.replaced,
        unchanged=result.unchanged,
    )


def policy_from_proto(policy: policy_pb2.ContextPolicy) -> RetrievalPolicy:
    """Decode a policy; a retriever that is not known raises InvalidRequest."""
    retriever = _RETRIEVER_FROM_PROTO.get(policy.retriever)
    if retriever is None:
        raise InvalidRequest(f"policy.retriever {policy.retriever} is not known")
    return RetrievalPolicy(
        collection=policy.collection,
        retriever=retriever,
        max_chunks=policy.max_chunks,
        min_score=policy.min_score if policy.HasField("min_score") else None,
        max_tokens=policy.max_tokens,
    )


def built_context_to_proto(context: BuiltContext) -> pb.BuildContextResponse:
    """Encode a context; without text there is no message."""
    message = message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content=context.text) if context.text else None
    return pb.BuildContextResponse(
        message=message,
        chunks=[chunk_to_proto(chunk) for chunk in context.chunks],
        token_count=context.token_count,
        coverage=context.coverage,
    )
