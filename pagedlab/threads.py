"""How long torch's CPU threads spin before they sleep. It must be set before torch is imported."""

from __future__ import annotations

import os
import sys

SPIN_COUNT = "1000"  # turns of a loop in which a thread of libgomp waits for the others
USERS_OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def spin_little() -> None:
    """Limit how long torch's OpenMP threads spin while they wait for each other.

    By default a thread spins for some milliseconds before it sleeps. Where another process needs
    the core, that time is lost. Qwen2.5-0.5B in fp32 on 2 cores, 4 prompts of 24 tokens, seconds:

        threads of libgomp               alone   beside one busy process
        two, as they are by default      2.3     15 to 70
        one                              3.8     3.9
        two that never spin              3.4     4.0
        two that spin 1,000 turns        2.7     4.0 to 4.6

    libgomp reads the setting once, when torch loads it. So nothing is set after torch has been
    imported. A setting of the user's own is never changed.
    """
    if "torch" in sys.modules:
        return
    if any(name in os.environ for name in USERS_OWN):
        return
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
