"""A gateway's index of one engine's blocks: replays its batches, and refuses what the protocol forbids."""


class BlockIndex:
    def __init__(self):
        self.sequence = 0
        self.records = []
        self.snapshots = 0
        self._blocks = {}  # hash -> tokens from the beginning to the block's end

    @property
    def beginnings(self):
        """The cached beginnings of prompts: tuples of tokens, each a whole number of blocks long."""
        return set(self._blocks.values())

    def apply(self, batch):
        self.records.append(batch.load)
        if batch.load.load_only:
            assert not batch.events
            assert batch.sequence_number == self.sequence
            return
        is_snapshot = batch.HasField("snapshot")
        if is_snapshot and batch.snapshot.index == 0:
            assert batch.events[0].HasField("cleared")
            self.snapshots += 1
        else:
            assert batch.sequence_number == self.sequence + 1
        self.sequence = batch.sequence_number
        for event in batch.events:
            assert bool(event.event_id) != is_snapshot
            self._apply_event(event)
        if is_snapshot and batch.snapshot.index == batch.snapshot.count - 1:
            assert len(self._blocks) == batch.snapshot.blocks

    def _apply_event(self, event):
        match event.WhichOneof("data"):
            case "cleared":
                self._blocks.clear()
            case "removed":
                for block_hash in event.removed.block_hashes:
                    del self._blocks[block_hash]
            case "stored":
                before = ()
                if event.stored.HasField("parent_block_hash"):
                    before = self._blocks[event.stored.parent_block_hash]
                for block in event.stored.blocks:
                    assert block.block_hash not in self._blocks
                    assert len(block.token_ids) == block.block_size
                    before = self._blocks[block.block_hash] = before + tuple(block.token_ids)
