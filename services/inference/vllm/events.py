"""Encodes changes of cached blocks and the load as the batches of `SubscribeKvEvents`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from smg_grpc_proto.generated import common_pb2 as pb

from services.inference.app.block_events import BlockEvents, BlockReport, EngineState
from services.inference.core.cached_blocks import BLOCK_TOKENS, MAX_BATCH_BLOCKS, Batch, CachedBlock

_EVENTS = 2 * MAX_BATCH_BLOCKS  # exceeds the number of events in a batch


class KvEvents:
    """Streams the events of the default model's cache."""

    def __init__(self, events: BlockEvents) -> None:
        self._events = events

    async def batches(self, sequence: int) -> AsyncGenerator[pb.KvEventBatch, None]:
        """Yield the batches from a sequence number on. Raises Overloaded if there are too many subscribers."""
        encoder = BatchEncoder()
        async with aclosing(self._events.reports(sequence)) as reports:
            async for report in reports:
                yield encoder.encode(report)


class BatchEncoder:
    """Encodes the reports of one stream, in order."""

    def __init__(self) -> None:
        self._sample = 0

    def encode(self, report: BlockReport) -> pb.KvEventBatch:
        """Return the batch for a report. If the report has no changes, the batch has only the load."""
        self._sample += 1
        load = _load_to_proto(report, self._sample)
        if report.batch is None:
            return pb.KvEventBatch(sequence_number=report.sequence, dp_rank=0, load=load)
        return pb.KvEventBatch(
            sequence_number=report.sequence,
            timestamp=report.batch.time_s,
            events=_numbered(report.batch),
            dp_rank=0,
            snapshot=_snapshot_to_proto(report.batch),
            load=load,
        )


def _numbered(batch: Batch) -> Iterator[pb.KvCacheEvent]:
    """Yield the events of a batch. The events of a snapshot have no numbers."""
    for index, event in enumerate(_events(batch)):
        if batch.snapshot is None:
            event.event_id = batch.sequence * _EVENTS + index
        yield event


def _events(batch: Batch) -> Iterator[pb.KvCacheEvent]:
    if batch.is_cleared:
        yield pb.KvCacheEvent(cleared=pb.KvCacheCleared())
    if batch.removed:
        yield pb.KvCacheEvent(removed=pb.KvBlocksRemoved(block_hashes=batch.removed))
    for chain in _chains(batch.stored):
        stored = pb.KvBlocksStored(blocks=map(_block_to_proto, chain))
        if chain[0].parent:
            stored.parent_block_hash = chain[0].parent
        yield pb.KvCacheEvent(stored=stored)


def _chains(blocks: Sequence[CachedBlock]) -> Iterator[list[CachedBlock]]:
    """Yield runs of blocks. In a run, each block is the parent of the next block."""
    chain: list[CachedBlock] = []
    for block in blocks:
        if chain and block.parent != chain[-1].number:
            yield chain
            chain = []
        chain.append(block)
    if chain:
        yield chain


def _block_to_proto(block: CachedBlock) -> pb.KvBlock:
    return pb.KvBlock(block_hash=block.number, token_ids=block.tokens, block_size=BLOCK_TOKENS)


def _snapshot_to_proto(batch: Batch) -> pb.KvSnapshotChunk | None:
    part = batch.snapshot
    if part is None:
        return None
    return pb.KvSnapshotChunk(index=part.index, count=part.count, blocks=part.blocks)


def _load_to_proto(report: BlockReport, sample: int) -> pb.EngineLoad:
    state = report.state
    load = state.load
    record = pb.EngineLoad(
        running_requests=load.running_sequences,
        waiting_requests=load.queued_requests,
        waiting_uncached_tokens=load.queued_prompt_tokens,
        token_usage=load.kv_used_ratio,
        active_token_usage=_active_ratio(state),
        max_running_requests=load.sequence_capacity,
        sample=sample,
        load_only=report.batch is None,
        engine_reports_steps=True,
        prefill_pending_tokens=load.pending_prompt_tokens,
    )
    if state.silence_s is not None:
        record.engine_silence_ms = round(1000 * state.silence_s)
    if report.is_full:
        record.num_used_tokens = load.kv_used_tokens
        record.max_total_num_tokens = load.kv_capacity_tokens
    return record


def _active_ratio(state: EngineState) -> float:
    """Return the fraction of the KV cache's cells that cannot be freed."""
    active_tokens = max(0, state.load.kv_used_tokens - state.idle_tokens)
    return active_tokens / max(1, state.load.kv_capacity_tokens)
