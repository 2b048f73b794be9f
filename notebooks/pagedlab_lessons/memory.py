"""The size of a KV cache, and four allocators that share it between requests.

No tensors here: memory is a row of token slots, each large enough for one token's keys and values
in every layer. An allocator decides which slots a request gets, and when. What each wastes is
counted in simulation.py.
"""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from pagedlab.arguments import one_of
from pagedlab.blocks import BlockPool, BlockTable, blocks_for

GIB = 2**30
ALLOCATORS = ("max", "pow2", "oracle", "paged")

# Arithmetic ---------------------------------------------------------------------------------------


class KVShape(NamedTuple):
    """The figures of a model's config that give the size of its KV cache."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_length: int  # tokens, prompt and output together, that the model was made for
    dtype_bytes: int = 2  # fp16 and bf16

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes

    def slots_in(self, num_bytes: float) -> int:
        """Tokens whose KV fits into `num_bytes`."""
        return int(num_bytes // self.bytes_per_token)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "KVShape":
        """Read a Hugging Face config, such as `model.config.to_dict()`."""
        # models that also see keep the decoder's part there
        given = {**config, **(config.get("text_config") or {})}
        needed = ("num_attention_heads", "num_hidden_layers", "hidden_size")
        missing = [name for name in needed if name not in given]
        if missing or given.get("kv_lora_rank"):
            raise ValueError(
                f"the formula needs a decoder with a config of {', '.join(needed)}, and without a "
                "compressed KV (kv_lora_rank)"
            )
        heads = given["num_attention_heads"]
        head_dim = given.get("head_dim") or given["hidden_size"] // heads
        dtype = str(given.get("dtype") or given.get("torch_dtype") or "float16")
        sizes = {"float32": 4, "float16": 2, "bfloat16": 2}
        size = sizes[one_of("the config's dtype", dtype.removeprefix("torch."), sizes)]
        name = given.get("_name_or_path") or given.get("model_type") or "model"
        kv_heads = given.get("num_key_value_heads") or heads
        layers, max_length = given["num_hidden_layers"], given["max_position_embeddings"]
        return cls(name, layers, kv_heads, head_dim, max_length, size)


MODELS = {
    shape.name: shape
    for shape in (
        KVShape("OPT-13B", 40, 40, 128, 2048),
        KVShape("LLaMA-2-7B", 32, 32, 128, 4096),
        KVShape("LLaMA-3-8B", 32, 8, 128, 8192),
        KVShape("Qwen2.5-0.5B", 24, 2, 64, 32768),
        KVShape("Qwen3-0.6B", 28, 8, 128, 40960),
    )
}


def padding_waste(lengths: Sequence[int]) -> tuple[float, float]:
    """Return the waste of padding a batch to its longest sequence.

    Args:
        lengths: tokens of each sequence.

    Returns:
        The wasted share of the token slots, and of the n x n attention scores.
    """
    longest = max(lengths)
    slots = sum(lengths) / (len(lengths) * longest)
    scores = sum(n * n for n in lengths) / (len(lengths) * longest**2)
    return 1 - slots, 1 - scores


# Address spaces -----------------------------------------------------------------------------------


class OutOfMemory(RuntimeError):
    """No place for the region that was asked for. Nothing was changed."""


class Region(NamedTuple):
    """Neighbouring slots [start, start + size)."""

    start: int
    size: int


class FirstFit:
    """`num_slots` slots in a row; a region goes into the lowest hole that is large enough."""

    preferred = attrgetter("start")  # the hole to take is the one with the least of it

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.taken: list[Region] = []  # by address

    @property
    def holes(self) -> list[Region]:
        """The free regions by address; two holes never touch."""
        starts = [0, *(region.start + region.size for region in self.taken)]
        stops = [*(region.start for region in self.taken), self.num_slots]
        return [
            Region(start, stop - start)
            for start, stop in zip(starts, stops, strict=True)
            if start < stop
        ]

    @property
    def num_free(self) -> int:
        """Free slots, wherever they are."""
        return self.num_slots - sum(region.size for region in self.taken)

    def allocate(self, size: int) -> Region:
        """Take `size` neighbouring slots, or raise `OutOfMemory`."""
        holes = self.holes
        large_enough = [hole for hole in holes if hole.size >= size]
        if not large_enough:
            largest = max((hole.size for hole in holes), default=0)
            raise OutOfMemory(
                f"no hole of {size:,} slots: {self.num_free:,} of {self.num_slots:,} are free, "
                f"the largest hole has {largest:,}"
            )
        region = Region(min(large_enough, key=self.preferred).start, size)
        insort(self.taken, region)
        return region

    def release(self, region: Region) -> None:
        """Give a region back; the holes beside it become one with it.

        `ValueError` if it is not taken.
        """
        self.taken.remove(region)


class Buddy(FirstFit):
    """Every region is a power of two, rounded up, at a multiple of its size.

    A hole is halved until it fits; a region given back joins its other half, its buddy, when that
    is free too (Knuth, The Art of Computer Programming, volume 1, section 2.5). So holes are powers
    of two as well, each as large as its address allows, and the smallest that fits is taken.
    """

    preferred = attrgetter("size", "start")

    @property
    def holes(self) -> list[Region]:
        """The free regions by address, cut at multiples of powers of two."""
        holes = []
        for start, size in super().holes:
            while size:
                part = min(start & -start or size, 1 << (size.bit_length() - 1))  # x & -x divides x
                holes.append(Region(start, part))
                start, size = start + part, size - part
        return holes

    def allocate(self, size: int) -> Region:
        """Take a region of `size` slots rounded up to a power of two, or raise `OutOfMemory`."""
        return super().allocate(_next_power_of_two(size))


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


# Allocators ---------------------------------------------------------------------------------------


class Request(NamedTuple):
    """Token counts. No real system knows `output` in advance; two of the allocators are told."""

    prompt: int
    output: int


class Contiguous:
    """One region a request: taken whole at admission, kept to the end. `key` names the request.

    needs  the slots that admission takes for a request
    """

    def __init__(self, space: FirstFit, reserve: Callable[[Request], int]) -> None:
        self.space, self.num_slots, self.needs = space, space.num_slots, reserve
        self._held: dict[int, tuple[Region, int]] = {}

    @property
    def num_free(self) -> int:
        """Free slots, wherever they are."""
        return self.space.num_free

    def admit(self, key: int, request: Request) -> None:
        """Make room for the request, its prompt at least, or raise `OutOfMemory`."""
        asked = self.needs(request)
        if sum(request) > asked:
            raise OutOfMemory(f"{asked:,} slots are reserved, and {sum(request):,} are needed")
        self._held[key] = self.space.allocate(asked), asked

    def append(self, key: int) -> None:
        """Room for one more token was made at admission."""

    def release(self, key: int) -> None:
        """Take everything back from the request."""
        self.space.release(self._held.pop(key)[0])

    def held(self, key: int) -> tuple[int, int]:
        """Slots that the request asked for, and slots that it was given."""
        region, asked = self._held[key]
        return asked, region.size

    def regions(self, key: int) -> list[Region]:
        """Where the request's slots are, in the order of its tokens."""
        return [self._held[key][0]]


class Paged:
    """Blocks from a `BlockPool`, one more whenever the last is full.

    The same verbs as `Contiguous`.

    Where that raises `OutOfMemory`, this raises `OutOfBlocks`; so does `append`. Nothing is rounded
    beyond the block.
    """

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.pool, self.num_slots = BlockPool(num_slots // block_size, block_size), num_slots
        self._tables: dict[int, BlockTable] = {}

    @property
    def num_free(self) -> int:
        """Free slots, those after the last whole block included."""
        return self.num_slots - self.pool.num_used * self.pool.block_size

    def needs(self, request: Request) -> int:
        size = self.pool.block_size
        return blocks_for(request.prompt, size) * size

    def admit(self, key: int, request: Request) -> None:
        table = BlockTable(self.pool)
        table.append(request.prompt)
        self._tables[key] = table

    def append(self, key: int) -> None:
        self._tables[key].append(1)

    def release(self, key: int) -> None:
        self._tables.pop(key).free()

    def held(self, key: int) -> tuple[int, int]:
        slots = len(self._tables[key].block_ids) * self.pool.block_size
        return slots, slots

    def regions(self, key: int) -> list[Region]:
        size = self.pool.block_size
        return [Region(block_id * size, size) for block_id in self._tables[key].block_ids]


def make_allocator(
    name: str,
    num_slots: int,
    *,
    max_length: int = 2048,
    block_size: int = 16,
    placement: str = "buddy",
) -> Contiguous | Paged:
    """Return one of the four allocators that the vLLM paper compares (section 6.1, figure 2).

    "max" reserves `max_length` slots a request. "pow2" knows the output to the next power of two
    (25 tokens reserve 32), "oracle" knows it exactly. "paged" takes blocks as they are needed.

    Args:
        name: one of `ALLOCATORS`.
        num_slots: of the memory.
        max_length: slots that "max" reserves.
        block_size: of "paged".
        placement: of the regions of the others: "buddy", as the paper assumes, or "first-fit".
    """
    reserve = {
        "max": lambda request: max_length,
        "pow2": lambda request: request.prompt + _next_power_of_two(request.output),
        "oracle": lambda request: request.prompt + request.output,
    }
    spaces = {"buddy": Buddy, "first-fit": FirstFit}
    space = spaces[one_of("placement", placement, spaces)]
    if one_of("name", name, ALLOCATORS) == "paged":
        return Paged(num_slots, block_size)
    return Contiguous(space(num_slots), reserve[name])
