"""The check of notebook 00: a block table by hand."""

from typing import Any

from pagedlab_lessons.checks import Wrong, exercise

_R2 = (3, 5, 9)  # the table of r2 in the notebook's film: r2 still writes, and r3 is new


@exercise
def table_by_hand(answer: Any) -> str:
    """The block table of r3, whose prompt has 40 tokens, while r2 holds blocks 3, 5 and 9.

    Blocks have 16 tokens and numbers from 0 to 63.
    """
    fault = _fault_of(answer)
    if fault:
        wanted = "enough blocks for 40 tokens, from 0 to 63, none of them twice and none of r2's"
        raise Wrong(fault, wanted, repr(answer))
    return (
        f"Tokens 0 to 15 are in block {answer[0]}, 16 to 31 in block {answer[1]}, and 32 to 39 in "
        f"block {answer[2]},\nwhich has 8 empty slots. Where is token 37? Entry 37 // 16 = 2 of "
        f"your table says: in block {answer[2]}, at offset 5.\nAny other free blocks would do as "
        "well: there is no hole that is too small."
    )


def _fault_of(answer: Any) -> str:
    """Return what is wrong with a table of r3, "" if nothing is."""
    if not isinstance(answer, (list, tuple)) or not answer:
        return "A block table is a list of block numbers."
    if list(answer) == [16, 16, 8]:
        return "These are numbers of tokens. A block table lists the numbers of blocks."
    for entry, block_id in enumerate(answer):
        if type(block_id) is not int or not 0 <= block_id < 64:
            return f"There is no block {block_id!r}."
        if block_id in _R2:
            first = 16 * _R2.index(block_id)
            return (
                f"Block {block_id} is in use: r2 keeps its tokens from {first} on there, and r3 "
                "would overwrite them."
            )
        if block_id in answer[:entry]:
            return (
                f"Block {block_id} is in the table twice: the later tokens of r3 would overwrite "
                "its earlier ones."
            )
    slots = 16 * len(answer)
    if slots < 40:
        return f"{len(answer)} x 16 = {slots} slots, and the prompt has 40 tokens."
    if slots > 48:
        return (
            "40 tokens fill two blocks and half of a third. A further block would be empty, and "
            "another request could not use it."
        )
    return ""
