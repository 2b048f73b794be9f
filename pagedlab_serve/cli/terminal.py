"""What is written to a terminal."""

import re

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    r"""Return the text with control characters written out, for instance as \x1b.

    A terminal would obey them: it would clear the screen, or fill the clipboard. Ends of lines and
    tabs stay.

    Args:
        text: from a model, a file's name or a user.
    """
    return CONTROL.sub(
        lambda found: found[0] if found[0] in "\n\t" else f"\\x{ord(found[0]):02x}", text
    )
