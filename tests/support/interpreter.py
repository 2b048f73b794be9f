"""Parts of Triton's interpreter that do less work, with the same numbers.

Each function below puts a faster part in the place of one of the interpreter's. They depend on the version of Triton:
where one of the parts has another form, the interpreter stays as slow as it is.
"""

import math
from functools import cache


def spare():
    """Put all faster parts in."""
    try:
        from triton.runtime import interpreter

        parts = [
            helpers_find_the_language_ready(interpreter),
            numpys_kinds_are_found_once(interpreter),
            # Else each sum of integers is computed again in 64 bits, for an assertion that only a debug mode makes.
            (interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False)),
            *shapes_are_made_once(interpreter.tl.core),
        ]
    except (ImportError, AttributeError, TypeError):  # no Triton, or another one
        return
    for part in parts:
        setattr(*part)


def helpers_find_the_language_ready(interpreter):
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


def numpys_kinds_are_found_once(interpreter):
    """For each value the interpreter makes a table of all kinds of numbers."""
    find, known = interpreter._get_np_dtype, {}

    def kind_of(kind):
        if kind.name not in known:
            known[kind.name] = find(kind)
        return known[kind.name]

    return interpreter, "_get_np_dtype", kind_of


def shapes_are_made_once(core):
    """Each value has a shape of constants, and each type one that is checked and written out."""
    make, known = core.block_type.__init__, {}

    @cache
    def constants(*shape):
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(size) for size in shape])

    def value(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = constants(*type.shape.values) if type.is_block() else constants()

    def block_type(self, element_ty, shape):
        sizes = [getattr(size, "value", size) for size in shape]
        key = element_ty.name, *sizes
        if key not in known:
            make(self, element_ty, sizes)
            known[key] = vars(self).copy()
        self.__dict__ = known[key].copy()

    return [(core.tensor, "__init__", value), (core.block_type, "__init__", block_type)]
