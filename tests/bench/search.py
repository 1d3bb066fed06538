"""How searches scale: `python -m tests.bench.search FOLDER [--sizes 1000,10000,100000] [--lancedb]`.

The texts of a folder, Debian's documentation packages for one, are ingested into a store of its own for each number of
chunks, with random vectors in place of embeddings, and searched by spans of its texts. BM25 alone is compared with
bm25s over the same terms. Times are those of the app, without the network and without embedding. With `--lancedb`
a table of LanceDB, which must be installed, takes the same chunks and vectors in, with an index of their words, and is
searched for the same queries and vectors in the same process.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import bm25s
import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from pagantic_common.domain.text.scoring import split_terms
from services.context.core.document import Document
from services.context.core.policy import DEFAULT_SMOOTHING, RetrievalPolicy, Retriever
from services.context.core.search.lexical_index import EMPTY
from services.context.core.search.terms import count_terms, query_term_ids
from services.context.core.searching import best_positions
from tests.support.context_app import Context, key

COLLECTION = "docs"
DOCUMENT_CHARS = 8000
CHUNK_TOKENS = 120  # words
DIMENSIONS = 384
QUERIES = 200
DOCUMENTS_AT_ONCE = 50
CHUNKS_AT_ONCE = 2000
FOUND = 10
COMPARED = 100  # best texts of a search by BM25 alone
_MARKUP = re.compile(r"(?s)<(script|style).*?</\1>|<[^>]+>")


class RandomEmbedder:
    """Gives unit vectors that mean nothing."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)

    async def embed(self, _model: str, texts: Sequence[str]) -> np.ndarray:
        """Return a row for each text."""
        return self.draw(len(texts))

    def draw(self, count: int) -> np.ndarray:
        """Return some vectors, one in each row."""
        vectors = self._random.standard_normal((count, DIMENSIONS), dtype=np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    """Print a paragraph for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--lancedb", action="store_true", help="Measure LanceDB beside.")
    options = parser.parse_args()
    with threadpool_limits(limits=1, user_api="blas"):  # as in the service
        for size in map(int, options.sizes.split(",")):
            asyncio.run(_measure(options.folder, size, has_peer=options.lancedb))


async def _measure(folder: Path, size: int, *, has_peer: bool) -> None:
    with tempfile.TemporaryDirectory() as state:
        url = f"sqlite:///{state}/context.sqlite3"
        with closing(_open(url, size)) as context:
            queries = await _fill(context, folder, size)
        started_s = time.perf_counter()
        with closing(_open(url, size)) as context:
            await _search(context, queries[0])
            _say(f"  first answer {time.perf_counter() - started_s:.2f} s after the start")
            took_ms = [await _search(context, query) for query in queries]
            _say(f"  hybrid {_times(took_ms)}")
            added_ms = [await _add(context, number, queries[0]) for number in range(30)]
            _say(f"  adding a document and finding it {_times(added_ms)}")
            index = await context.indexes.open(key(COLLECTION))
            resident = psutil.Process().memory_info().rss / 2**20
            peer = await _read_chunks(context) if has_peer else []
            _say(f"  index {index.size_bytes / 2**20:.0f} MiB at most, process {resident:.0f} MiB")
    _compare(folder, size, queries)
    if has_peer:
        with tempfile.TemporaryDirectory() as state:
            _measure_lancedb(state, peer, queries)


async def _read_chunks(context: Context) -> list[str]:
    documents = context.chunks.read_documents(key(COLLECTION))
    return [derived.stored.chunk.content async for one in documents for derived in one.chunks]


def _measure_lancedb(state: str, texts: Sequence[str], queries: Sequence[str]) -> None:
    import lancedb  # noqa: PLC0415 - a peer that need not be installed

    embedder = RandomEmbedder()
    vectors = embedder.draw(len(texts))
    rows = [{"text": text, "vector": vector} for text, vector in zip(texts, vectors, strict=True)]
    started_s = time.perf_counter()
    table = lancedb.connect(state).create_table(COLLECTION, rows[:DOCUMENTS_AT_ONCE])
    for start in range(DOCUMENTS_AT_ONCE, len(rows), CHUNKS_AT_ONCE):
        table.add(rows[start : start + CHUNKS_AT_ONCE])
    table.create_index("text", config=lancedb.index.FTS())
    table.optimize()
    _say(f"  LanceDB {lancedb.__version__}: ingested at {len(rows) / (time.perf_counter() - started_s):.0f} chunks/s")
    started_s = time.perf_counter()
    table = lancedb.connect(state).open_table(COLLECTION)

    def search(query: str) -> float:
        began_s = time.perf_counter()
        table.search(query_type="hybrid").vector(embedder.draw(1)[0]).text(query).limit(FOUND).to_list()
        return (time.perf_counter() - began_s) * 1000

    def add(number: int) -> float:
        began_s = time.perf_counter()
        table.add([{"text": f"added{number} {queries[0]}", "vector": vectors[0]}])
        return (time.perf_counter() - began_s) * 1000 + search(f"added{number}")

    search(queries[0])
    _say(f"    first answer {time.perf_counter() - started_s:.2f} s after the start")
    _say(f"    hybrid {_times([search(query) for query in queries])}")
    _say(f"    adding a chunk and finding it {_times([add(number) for number in range(30)])}")


def _open(url: str, size: int) -> Context:
    context = Context(url, max_chunks=2 * size + 1000, max_index_bytes=1 << 34, chunk_tokens=CHUNK_TOKENS)
    context.embedder.embed = RandomEmbedder().embed  # type: ignore[method-assign]
    return context


async def _fill(context: Context, folder: Path, size: int) -> list[str]:
    random, texts, count = Random(1), [], 0  # noqa: S311 - queries that can be asked again
    started_s = time.perf_counter()
    batch: list[Document] = []
    for number, text in enumerate(_texts(folder)):
        texts.append(text)
        batch.append(Document(f"d{number}", text))
        if len(batch) == DOCUMENTS_AT_ONCE:
            count = (await context.ingest(*batch, name=COLLECTION)).collection.chunk_count
            batch = []
        if count >= size:
            break
    took_s = time.perf_counter() - started_s
    await _embed(context)
    _say(f"{count} chunks of {len(texts)} documents, ingested at {count / took_s:.0f} chunks/s")
    return [_query(random, random.choice(texts)) for _ in range(QUERIES)]


async def _embed(context: Context) -> None:
    while True:
        waiting = await context.embeddings.claim_unembedded(CHUNKS_AT_ONCE, [])
        if waiting is None:
            return
        vectors = await context.embedder.embed(waiting.model, waiting.contents)
        await context.embeddings.put_embeddings(waiting, vectors)


async def _search(context: Context, query: str) -> float:
    policy = RetrievalPolicy(COLLECTION, Retriever.HYBRID, max_chunks=FOUND, smoothing=DEFAULT_SMOOTHING)
    started_s = time.perf_counter()
    await context.retrieval.retrieve("acme", query, policy)
    return (time.perf_counter() - started_s) * 1000


async def _add(context: Context, number: int, query: str) -> float:
    started_s = time.perf_counter()
    await context.ingest(Document(f"new{number}", f"added{number} {query}"), name=COLLECTION)
    await _search(context, f"added{number}")
    return (time.perf_counter() - started_s) * 1000


def _compare(folder: Path, size: int, queries: Sequence[str]) -> None:
    texts = []
    for text in _texts(folder):
        texts += [text[start : start + 800] for start in range(0, len(text), 800)]
        if len(texts) >= size:
            break
    texts = texts[:size]
    index = EMPTY.extend([count_terms(text, "none") for text in texts], np.ones(len(texts), dtype=bool))
    peer = bm25s.BM25(method="lucene")
    peer.index([split_terms(text) for text in texts], show_progress=False)
    ours, theirs = [], []
    for turn in range(3):
        for query in queries:
            started_s = time.perf_counter()
            best_positions(index.bm25(query_term_ids(query, "none")), 0.0, COMPARED)
            middle_s = time.perf_counter()
            peer.retrieve([split_terms(query)], k=COMPARED, show_progress=False)
            if turn:  # the first one fills caches
                ours.append(middle_s - started_s)
                theirs.append(time.perf_counter() - middle_s)
    rates = [len(one) / sum(one) for one in (ours, theirs)]
    _say(f"  BM25 alone: {rates[0]:.0f} queries/s, bm25s {rates[1]:.0f}, ratio {rates[0] / rates[1]:.2f}")


def _texts(folder: Path) -> Iterator[str]:
    """Yield the folder's texts without markup, in parts."""
    for path in sorted(folder.rglob("*")):
        name = path.name.removesuffix(".gz")
        if path.is_symlink() or not path.is_file() or not name.endswith((".html", ".rst", ".txt")):
            continue
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = _MARKUP.sub("", data.decode("utf-8", "replace"))
        for start in range(0, len(text), DOCUMENT_CHARS):
            if (part := text[start : start + DOCUMENT_CHARS]).strip():
                yield part


def _query(random: Random, text: str) -> str:
    words = text.split()
    start = random.randrange(max(1, len(words) - 10))
    return f"what is {' '.join(words[start : start + random.randrange(3, 10)])} and how does it work"


def _times(took_ms: Sequence[float]) -> str:
    return f"p50 {statistics.median(took_ms):.1f} ms, p99 {statistics.quantiles(took_ms, n=100)[98]:.1f} ms"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
