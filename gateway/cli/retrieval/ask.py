"""`pagantic ask`: an answer from a collection, with the quotes that support it."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.answering.answers import note_request_id, stream_answer, wait_for_answer
from gateway.cli.completion import names_of, words
from gateway.cli.output import UsageError, check_response, note, print_json, reporting_errors, say
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client, ask_request
from pagantic_common.client.descriptions import describe_citation
from pagantic_common.client.requests import ASKED_CHUNKS, AUTO, RETRIEVERS
from pagantic_common.client.sources.retrievers import best_retriever
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.calibration import MAX_SCALING
from pagantic_common.domain.text.terminal import plain_text

UNSURE = 0.5  # A note is printed if the probability that the sources have no answer exceeds this value.
_KNOWN = (AUTO, *(name.lower() for name in RETRIEVERS))

RetrieverName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"{', '.join(_KNOWN)}; auto is hybrid where the collection has embeddings, else bm25.",
        autocompletion=words(_KNOWN),
    ),
]
Chunks = Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Most chunks to read.")]


def ask(
    collection: Annotated[
        str,
        typer.Argument(metavar="COLLECTION", help="Collection to answer from.", autocompletion=names_of("collections")),
    ],
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question; @FILE reads a file, and - or a pipe stdin.")
    ] = None,
    *,
    retriever: RetrieverName = AUTO,
    chunks: Chunks = ASKED_CHUNKS,
    only: Annotated[
        str,
        typer.Option("--filter", metavar="CEL", help="Only documents for which it is true; reads metadata and source."),
    ] = "",
    queries: Annotated[
        int, typer.Option(metavar="N", min=0, max=5, help="Other wordings of the question to search by, too.")
    ] = 0,
    hyde: Annotated[bool, typer.Option("--hyde", help="Search by an answer that the model makes up, too.")] = False,
    min_probability: Annotated[
        float | None,
        typer.Option(metavar="P", min=0, max=1, help="Answer only if the chunks have the answer with probability P."),
    ] = None,
    slope: Annotated[
        float | None,
        typer.Option(
            metavar="A", min=-MAX_SCALING, max=MAX_SCALING, help="Slope of that probability, as calibrate prints it."
        ),
    ] = None,
    intercept: Annotated[
        float | None,
        typer.Option(
            metavar="B",
            min=-MAX_SCALING,
            max=MAX_SCALING,
            help="Intercept of that probability, as calibrate prints it.",
        ),
    ] = None,
    model: options.Model = "",
    max_tokens: options.MaxTokens = 0,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    request_id: options.RequestId = "",
    timeout: options.Timeout = options.TIMEOUT_S,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Answer from a collection, with quotes."""
    with reporting_errors():
        check_retriever(retriever)
        hints = options.options_of(options.request_id_of(request_id), max_tokens, temperature, seed, model=model)
        if min_probability is None and (slope is not None or intercept is not None):
            raise UsageError("--slope and --intercept calibrate the probability: give --min-probability, too")
        words = options.read_text(question)
    with reporting_errors(hints["request_id"]), Client(address, timeout_s=timeout, patience_s=0) as client:
        if retriever == AUTO:
            retriever = find_retriever(client, collection, hyde=hyde)
        request = ask_request(
            collection,
            words,
            retriever=retriever,
            max_chunks=chunks,
            filter=only,
            queries=queries,
            hypothetical_document=hyde,
            min_probability=min_probability,
            slope=slope,
            intercept=intercept,
            **hints,
        )
        note_request_id(request)
        if as_json:
            response = wait_for_answer(client, request)
            print_json(response)
        else:
            response = stream_answer(client, request)
            _show_sources(response)
            _note_refusal(response, min_probability or 0.0)
        check_response(response)


def check_retriever(name: str) -> None:
    """Raise UsageError for an unknown retriever."""
    if name not in _KNOWN:
        raise UsageError(f"--retriever {name!r}: use one of {', '.join(_KNOWN)}")


def find_retriever(client: Client, name: str, *, hyde: bool = False) -> str:
    """Return the retriever that suits a collection.

    Raises NotFound for an unknown collection, or UsageError if HyDE was requested and the collection has no embeddings.
    """
    collection = client.get_collection(name)
    try:
        retriever = best_retriever(collection, hypothetical_document=hyde)
    except InvalidRequest as error:
        raise UsageError(str(error)) from None
    missing = collection.chunk_count - collection.embedded_chunk_count
    if retriever == "hybrid" and missing:
        note(f"{missing} of {collection.chunk_count} chunks are not embedded yet: their words are searched alone")
    return retriever


def _show_sources(response: execution_pb2.SystemResponse) -> None:
    """Print the quotes of an answer, and a note if the sources probably have no answer."""
    if response.citations:
        say("")
    for line in dict.fromkeys(map(describe_citation, response.citations)):
        say(plain_text(line))
    if response.citations and response.not_in_sources > UNSURE:
        note(f"the model doubts it: probability {response.not_in_sources:.2f} that the sources do not have the answer")


def _note_refusal(response: execution_pb2.SystemResponse, min_probability: float) -> None:
    """Print a note if the answer was refused because the chunks were too unlikely to contain it."""
    is_retrieval = response.confidence_source == execution_pb2.CONFIDENCE_SOURCE_RETRIEVAL
    if is_retrieval and response.confidence < min_probability:
        note(
            f"the chunks have the answer with probability {response.confidence:.3g}, which is below --min-probability "
            f"{min_probability:g}"
        )
