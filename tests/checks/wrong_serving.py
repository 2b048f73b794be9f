"""Plausible wrong answers to the exercises of notebook 13, and right ones that differ from the solution."""

from __future__ import annotations

import queue
import uuid
from typing import Any

from pagedlab.checks.serving import CLASSES
from pagedlab.serving.app import salt_for
from pagedlab.serving.engine_thread import run_loop

# The loop -----------------------------------------------------------------------------------------------------


def drains_then_runs(inbox: Any, busy: Any, step: Any) -> None:
    """Right: it takes all that is there, and then runs what it took."""
    while True:
        mail = [] if busy() else [inbox.get()]
        while True:
            try:
                mail.append(inbox.get(block=False))
            except queue.Empty:
                break
        for job in mail:
            if job is None:
                return
            job()
        if busy():
            step()


def always_sleeps(inbox: Any, busy: Any, step: Any) -> None:
    while (work := inbox.get()) is not None:
        work()
        step()


def never_sleeps(inbox: Any, busy: Any, step: Any) -> None:
    while True:
        try:
            while (work := inbox.get(block=False)) is not None:
                work()
            return
        except queue.Empty:
            if busy():
                step()


def one_message_a_step(inbox: Any, busy: Any, step: Any) -> None:
    while True:
        try:
            if (work := inbox.get(block=not busy())) is None:
                return
            work()
        except queue.Empty:
            pass
        if busy():
            step()


def finishes_one_before_the_next(inbox: Any, busy: Any, step: Any) -> None:
    while (work := inbox.get()) is not None:
        work()
        while busy():
            step()


def steps_when_idle(inbox: Any, busy: Any, step: Any) -> None:
    while True:
        try:
            while (work := inbox.get(block=False)) is not None:
                work()
            return
        except queue.Empty:
            step()


def does_not_run_them(inbox: Any, busy: Any, step: Any) -> None:
    while inbox.get(block=not busy()) is not None:
        if busy():
            step()


def lets_empty_escape(inbox: Any, busy: Any, step: Any) -> None:
    while (work := inbox.get(block=not busy())) is not None:
        work()
        if busy():
            step()


def looks_before_it_takes(inbox: Any, busy: Any, step: Any) -> None:
    """Right: nobody else takes from the inbox, so what is there stays there."""
    while True:
        if busy() and inbox.empty():
            step()
        elif (work := inbox.get()) is None:
            return
        else:
            work()


# The salt -----------------------------------------------------------------------------------------------------


def one_salt_for_all(tenant: str | None, cache_salt: str | None) -> str | None:
    return "salt"


def the_clients_only(tenant: str | None, cache_salt: str | None) -> str | None:
    return cache_salt


def the_tenants_only(tenant: str | None, cache_salt: str | None) -> str | None:
    return tenant


def one_or_the_other(tenant: str | None, cache_salt: str | None) -> str | None:
    return cache_salt or tenant


def glued(tenant: str | None, cache_salt: str | None) -> str | None:
    return f"{tenant}{cache_salt}"


def with_a_colon(tenant: str | None, cache_salt: str | None) -> str | None:
    return f"{tenant}:{cache_salt}"


def with_a_comma(tenant: str | None, cache_salt: str | None) -> str | None:
    return f'"{tenant}", "{cache_salt}"'


def a_new_one_each_time(tenant: str | None, cache_salt: str | None) -> str | None:
    return uuid.uuid4().hex


def a_number(tenant: str | None, cache_salt: str | None) -> Any:
    return hash((tenant, cache_salt))


def a_hash_as_text(tenant: str | None, cache_salt: str | None) -> str | None:
    return str(hash((tenant, cache_salt)))


def nothing_is_none(tenant: str | None, cache_salt: str | None) -> str | None:
    return repr((tenant or "", cache_salt or ""))


def both_written_down(tenant: str | None, cache_salt: str | None) -> str | None:
    return repr((tenant, cache_salt))


def length_first(tenant: str | None, cache_salt: str | None) -> str | None:
    return f"{'-' if tenant is None else len(tenant)} {tenant} {'-' if cache_salt is None else '+'} {cache_salt}"


# vLLM ---------------------------------------------------------------------------------------------------------

MATCHED = {name: part for name, (part, _) in CLASSES.items()}


def swapped(first: str, second: str) -> dict[str, str]:
    return {**MATCHED, first: MATCHED[second], second: MATCHED[first]}


WRONG: dict[str, list[Any]] = {
    "engine_loop": [
        always_sleeps,
        never_sleeps,
        one_message_a_step,
        finishes_one_before_the_next,
        steps_when_idle,
        does_not_run_them,
        lets_empty_escape,
    ],
    "closed_salt": [
        one_salt_for_all,
        the_clients_only,
        the_tenants_only,
        one_or_the_other,
        glued,
        with_a_colon,
        with_a_comma,
        a_new_one_each_time,
        a_number,
        a_hash_as_text,
        nothing_is_none,
    ],
    "vllm_classes": [
        swapped("BlockTable", "KVCacheManager"),
        swapped("EngineCoreProc", "RequestOutputCollector"),
        {**MATCHED, "Sampler": "the sampler"},
        {"Sampler": "sample"},
    ],
}
RIGHT: dict[str, list[Any]] = {
    "engine_loop": [run_loop, looks_before_it_takes, drains_then_runs],
    "closed_salt": [salt_for, both_written_down, length_first],
    "vllm_classes": [MATCHED],
}
