"""Converts between the messages of the context service and domain values."""

from __future__ import annotations

from pagantic.common.v1 import message_pb2
from pagantic.context.v1 import collection_pb2, file_pb2, policy_pb2
from pagantic.context.v1 import context_service_pb2 as pb
from pagantic_common.codec.chunks import chunk_to_proto
from pagantic_common.codec.errors import optional_failure_to_proto
from pagantic_common.codec.fields import EnumCodec
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.ranking import Fusion
from services.context.app.building import BuiltContext
from services.context.app.retrieval import Found
from services.context.app.verification import VerificationReport
from services.context.core.document import Collection, Document
from services.context.core.policy import (
    DEFAULT_SMOOTHING,
    DEFAULT_VECTOR_WEIGHT,
    Expansion,
    RetrievalPolicy,
    Retriever,
)
from services.context.core.reading.files import (
    FileHeader,
    FileOutcome,
    FilePart,
    FileResult,
    FilesSummary,
    FolderSelection,
)
from services.context.ports import IngestResult

_OUTCOMES = EnumCodec(file_pb2.FileOutcome, FileOutcome, "FILE_OUTCOME_", unknown=None)
_ROLES = frozenset(policy_pb2.ContextRole.values())
_FUSIONS = EnumCodec(policy_pb2.Fusion, Fusion, "FUSION_", unknown=None)
_RETRIEVERS = EnumCodec(policy_pb2.Retriever, Retriever, "RETRIEVER_", unknown=None)


def document_from_proto(document: collection_pb2.Document) -> Document:
    """Decode a document."""
    return Document(source=document.source, content=document.content, metadata_json=document.metadata_json)


def collection_to_proto(collection: Collection) -> collection_pb2.Collection:
    """Encode a collection."""
    encoded = collection_pb2.Collection(
        name=collection.name,
        document_count=collection.document_count,
        chunk_count=collection.chunk_count,
        embedding_model=collection.options.embedding_model,
        embedded_chunk_count=collection.embedded_chunk_count,
        language=collection.options.language,
    )
    encoded.created_at.FromDatetime(collection.created_at)
    return encoded


def ingest_result_to_proto(result: IngestResult) -> pb.IngestResponse:
    """Encode the result of an ingest."""
    return pb.IngestResponse(
        collection=collection_to_proto(result.collection),
        added=result.added,
        replaced=result.replaced,
        unchanged=result.unchanged,
    )


def file_part_from_proto(request: pb.IngestFilesRequest) -> FileHeader | FilePart:
    """Decode a header or the next bytes of a file. Raises InvalidRequest for any other message."""
    part = request.WhichOneof("part")
    if part == "header":
        header = request.header
        return FileHeader(header.source, header.media_type, header.metadata_json)
    if part == "content":
        return FilePart(request.content.data, request.content.is_last)
    raise InvalidRequest("a message of the stream has neither a header nor content: send the collection only first")


def selection_from_proto(request: pb.IngestFolderRequest) -> FolderSelection:
    """Decode a selection of files in a folder."""
    return FolderSelection(request.root, request.path, request.glob, request.prune)


def file_result_to_proto(result: FileResult) -> file_pb2.FileResult:
    """Encode the result of a file."""
    return file_pb2.FileResult(
        source=result.source,
        outcome=_OUTCOMES.to_proto(result.outcome),
        error=optional_failure_to_proto(result.failure),
        chunk_count=result.chunk_count,
    )


def summary_to_proto(summary: FilesSummary) -> file_pb2.FilesSummary:
    """Encode the counts of an ingest of files."""
    encoded = file_pb2.FilesSummary(
        added=summary.counts.get(FileOutcome.ADDED, 0),
        replaced=summary.counts.get(FileOutcome.REPLACED, 0),
        unchanged=summary.counts.get(FileOutcome.UNCHANGED, 0),
        failed=summary.counts.get(FileOutcome.FAILED, 0),
        pruned=summary.pruned,
    )
    if summary.collection is not None:
        encoded.collection.CopyFrom(collection_to_proto(summary.collection))
    return encoded


def policy_from_proto(policy: policy_pb2.ContextPolicy) -> RetrievalPolicy:
    """Decode a policy. An unset retriever means BM25, and an unknown retriever becomes None.

    Raises InvalidRequest if the role is unknown.
    """
    if policy.role not in _ROLES:
        raise InvalidRequest(f"policy.role {policy.role} is not known")
    min_score: float | None = None
    if policy.HasField("min_score"):
        min_score = policy.min_score
    vector_weight = DEFAULT_VECTOR_WEIGHT
    if policy.HasField("vector_weight"):
        vector_weight = policy.vector_weight
    smoothing = 0.0
    if policy.retriever == policy_pb2.RETRIEVER_HYBRID:
        smoothing = DEFAULT_SMOOTHING
    if policy.HasField("smoothing"):
        smoothing = policy.smoothing
    return RetrievalPolicy(
        collection=policy.collection,
        retriever=_RETRIEVERS.from_proto(policy.retriever or policy_pb2.RETRIEVER_BM25),
        max_chunks=policy.max_chunks,
        min_score=min_score,
        max_tokens=policy.max_tokens,
        is_fenced=policy.role != policy_pb2.CONTEXT_ROLE_SYSTEM,
        filter=policy.filter,
        fusion=_FUSIONS.from_proto(policy.fusion or policy_pb2.FUSION_WEIGHTED),
        vector_weight=vector_weight,
        smoothing=smoothing,
        diversity=policy.diversity,
        expansion=Expansion(policy.expansion.neighbours, policy.expansion.section),
    )


def found_to_proto(found: Found) -> pb.RetrieveResponse:
    """Encode the result of a retrieval."""
    chunks = [chunk_to_proto(chunk) for chunk in found.chunks]
    return pb.RetrieveResponse(chunks=chunks, unembedded_chunk_count=found.unembedded_count)


def report_to_proto(report: VerificationReport) -> pb.VerifyResponse:
    """Encode the report of a verification."""
    return pb.VerifyResponse(
        document_count=report.document_count,
        chunk_count=report.chunk_count,
        embedding_count=report.embedding_count,
        differences=report.differences,
        difference_count=report.difference_count,
    )


def built_context_to_proto(context: BuiltContext, *, is_fenced: bool) -> pb.BuildContextResponse:
    """Encode a context. A fenced context becomes a user message. A context without text has no message."""
    response = pb.BuildContextResponse(
        chunks=[chunk_to_proto(chunk) for chunk in context.chunks],
        token_count=context.token_count,
        coverage=context.coverage,
        unembedded_chunk_count=context.unembedded_count,
    )
    if context.text:
        role = message_pb2.ROLE_USER if is_fenced else message_pb2.ROLE_SYSTEM
        response.message.CopyFrom(message_pb2.Message(role=role, content=context.text))
    return response
