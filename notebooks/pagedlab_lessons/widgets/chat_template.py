"""The parts that a chat template adds to a prompt: roles, line ends, and a message of the system.

chat_template.js finds the same words on a page.
"""

from collections.abc import Sequence

ROLES = ("system", "user", "assistant", "tool")


def is_template(words: Sequence[str], prompt: int) -> list[bool]:
    """Return for each token of a prompt whether a chat template added it.

    Args:
        words: the text of each token; "" for a special one.
        prompt: tokens of the prompt.
    """
    length = min(prompt, len(words))
    if not (_is_role(words, 1) and words[2:3] == ["\n"]):
        return [False] * length
    speaker = ""
    found = []
    for i in range(length):
        if _is_role(words, i):
            speaker = words[i]
        found.append(_is_role(words, i) or _is_mark(words, i) or speaker == "system")
    return found


def _is_role(words: Sequence[str], i: int) -> bool:
    """Return whether a token names who speaks."""
    return 0 < i < len(words) and words[i - 1] == "" and words[i] in ROLES


def _is_mark(words: Sequence[str], i: int) -> bool:
    """Return whether a token is special, or the line end after a special one or after a role."""
    if words[i] == "":
        return True
    return i > 0 and words[i] == "\n" and (words[i - 1] == "" or _is_role(words, i - 1))
