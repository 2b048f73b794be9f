"""Triton's interpreter in about half of its time, with the same numbers.

Each function below puts a faster part in the place of one of the interpreter's. They depend on the version of Triton:
where one of the parts has another form, the interpreter stays as slow as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def spare():
    """Put all faster parts in."""
    try:
        from triton.runtime import interpreter

        parts = [helpers_find_the_language_ready(interpreter), overflows_are_not_looked_for(interpreter)]
    except (ImportError, AttributeError, TypeError):  # no Triton, or another one
        return
    for part in parts:
        setattr(*part)


def helpers_find_the_language_ready(interpreter) -> tuple[Any, str, Any]:
    """Before each call of a helper the interpreter puts its functions in again, and never takes them away."""
    patch_language = interpreter._patch_lang
    patched = set()  # modules of helpers

    def call(self, *args, **kwargs):
        if self.fn.__module__ not in patched:
            patch_language(self.fn)
            patched.add(self.fn.__module__)
        function = self.rewrite()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    return interpreter.InterpretedFunction, "__call__", call


def overflows_are_not_looked_for(interpreter) -> tuple[Any, str, Any]:
    """After each sum and product of integers the interpreter looks for an overflow; it tells only when it debugs."""
    builder = interpreter.interpreter_builder
    looks = builder.options.debug
    return builder, "options", replace(builder.options, sanitize_overflow=looks and builder.options.sanitize_overflow)
