"""Waiting for what other threads and processes do."""

import time


def until(condition, seconds: float = 20, why: str = "the condition does not hold"):
    """Ask until the answer is true, and return it. It is an error if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {seconds} seconds: {why}"
        time.sleep(0.01)
    return found
