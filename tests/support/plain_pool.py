"""A block pool as a reader may write it in notebook 02."""

from pagedlab import OutOfBlocks
from pagedlab.blocks import Pool


class PlainPool(Pool):
    """The verbs, and nothing else: no events, no check, and counts in a dict."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.unused = list(range(num_blocks))
        self.counts: dict[int, int] = {}

    @property
    def num_free(self):
        return len(self.unused)

    def allocate(self):
        if not self.unused:
            raise OutOfBlocks("none is free")
        block_id = self.unused.pop(0)
        self.counts[block_id] = 1
        return block_id

    def share(self, block_id: int):
        self.counts[block_id] += 1
        return block_id

    def release(self, block_id: int):
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.unused.append(block_id)

    def refcount(self, block_id: int):
        return self.counts.get(block_id, 0)
