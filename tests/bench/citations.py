"""How long constraints of citations take to build, and their masks: `python -m tests.bench.citations [CHUNKS]`.

The sources are chunks of 400 tokens of the Cranfield abstracts (PAGANTIC_SUITES), by default 8, under the tokens of
the default model. Answers of four claims, which quote random runs of words, are decoded as given. Each answer has
a lexer of its own, as each request with other sources has.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import llama_cpp
from llguidance import LLTokenizer
from llguidance.llamacpp import lltokenizer_from_vocab

from pagantic_common.domain.text.boundaries import find_boundaries
from pagantic_common.domain.text.citations import CitationPolicy
from pagantic_common.grammar.citations import engine_text_of_citations
from pagantic_common.grammar.engine_text import start_ready_matcher
from services.inference.adapters.constraint_trial import try_constraint
from services.inference.adapters.default_model import find_default_model
from services.inference.core.generation import ConstraintKind
from tests.bench.cited_answers import cranfield_documents

CHUNK_TOKENS = 400
ANSWERS = 40
CLAIMS = 4
CLAIM_CHARS = 100
BUILDS = 20

ResultT = TypeVar("ResultT")


def main() -> None:
    """Print the sizes and times."""
    tokenizer = _tokenizer()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    sources = _sources(tokenizer, list(cranfield_documents().values()), count)
    policy = CitationPolicy()
    text = engine_text_of_citations(sources, policy)
    memory_bytes = try_constraint(ConstraintKind.ENGINE_TEXT, text).memory_bytes
    sys.stdout.write(f"{count} chunks of {CHUNK_TOKENS} tokens: {len(text)} bytes of text, {memory_bytes} of memory\n")
    _print_times("compile, in the constraint service", _times(lambda: engine_text_of_citations(sources, policy)))
    _print_times("trial, in a worker process", _times(lambda: try_constraint(ConstraintKind.ENGINE_TEXT, text)))
    _print_times("build, in the inference service", _times(lambda: start_ready_matcher(text, tokenizer)))
    draw = random.Random(1)  # noqa: S311 - the same answers each time
    masks: list[float] = []
    for _ in range(ANSWERS):
        masks += _masks_of(text, tokenizer, _answer(sources, draw))
    _print_times(f"masks of {ANSWERS} answers", masks)


def _tokenizer() -> LLTokenizer:
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(find_default_model()).encode(), parameters)
    tokenizer: LLTokenizer = lltokenizer_from_vocab(llama_cpp.llama_model_get_vocab(model))
    return tokenizer


def _sources(tokenizer: LLTokenizer, documents: Sequence[str], count: int) -> list[str]:
    tokens = tokenizer.tokenize_str(" ".join(documents[: count * CHUNK_TOKENS // 50]))
    return [
        tokenizer.decode_str(tokens[first : first + CHUNK_TOKENS]).strip()
        for first in range(0, count * CHUNK_TOKENS, CHUNK_TOKENS)
    ]


def _answer(sources: Sequence[str], draw: random.Random) -> str:
    claims: list[dict[str, Any]] = []
    for _ in range(CLAIMS):
        number = draw.randrange(len(sources))
        source = sources[number]
        boundaries = find_boundaries(source)
        first, more = draw.randrange(len(boundaries) - 20), draw.randrange(4, 12)
        quote = source[boundaries[first].right : boundaries[first + more].ends[0]]
        claims.append({"source": number + 1, "quote": quote, "text": " ".join(source[:CLAIM_CHARS].split())})
    return json.dumps({"in_sources": True, "claims": claims}, ensure_ascii=False)


def _masks_of(text: str, tokenizer: LLTokenizer, answer: str) -> list[float]:
    """Return the seconds of the mask before each token of an answer."""
    matcher = start_ready_matcher(text, tokenizer)
    masks: list[float] = []
    for token in tokenizer.tokenize_str(answer):
        started_s = time.perf_counter()
        matcher.compute_bitmask()
        masks.append(time.perf_counter() - started_s)
        if not matcher.consume_token(token):
            raise SystemExit(f"the answer is refused: {matcher.get_error()}")
    return masks


def _times(work: Callable[[], object]) -> list[float]:
    times: list[float] = []
    for _ in range(BUILDS):
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return times


def _print_times(name: str, times: Sequence[float]) -> None:
    p50, p99 = statistics.median(times) * 1e6, statistics.quantiles(times, n=100)[-1] * 1e6
    sys.stdout.write(f"{name:36} p50 {p50:8.0f} µs  p99 {p99:8.0f} µs\n")


if __name__ == "__main__":
    main()
