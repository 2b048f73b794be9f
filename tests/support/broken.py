"""The planted bugs of notebooks/pagedlab_lessons/broken.py, and four that only tests need."""

from pagedlab_lessons.broken import *  # noqa: F403

from pagedlab import BlockCopy, BlockPool, BlockTable


class FreesSharedBlock(BlockPool):
    """`release` gives the block back at once, whoever else reads it."""

    def release(self, block_id: int):
        if self.refcount(block_id) > 1:
            self.counts[block_id] = 1
        super().release(block_id)


class LeaksOnFork(BlockTable):
    """Takes one reference too many on the last block of every fork."""

    def fork(self):
        child = super().fork()
        if child.block_ids:
            self.pool.share(child.block_ids[-1])
        return child


class CopiesEagerly(BlockTable):
    """Copies the last block when it forks, although nobody may ever write to it."""

    def fork(self):
        child = super().fork()
        if self.num_tokens % self.pool.block_size:
            child.copy_last()
        return child


class CopiesWholeTable(BlockTable):
    """Copies every block of the table when one of them is written."""

    def append(self, n: int = 1):
        copies = super().append(n)
        for i, block_id in enumerate(self.block_ids):
            if copies and self.pool.refcount(block_id) > 1:
                self.block_ids[i] = self.pool.allocate()
                self.pool.release(block_id)
                copies.append(BlockCopy(block_id, self.block_ids[i]))
        return copies
