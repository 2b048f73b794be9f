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
            the_language_is_ready(interpreter),
            functions_are_called_directly(interpreter),
            operands_fit_as_before(interpreter),
            blocks_of_one_shape_fit(interpreter.TritonSemantic),
            numpys_kinds_are_found_once(interpreter),
            # Else each sum of integers is computed again in 64 bits, for an assertion that only a debug mode makes.
            (interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False)),
            # It measures again what operations have measured.
            (interpreter.TensorHandle, "__post_init__", lambda self: None),
            *shapes_are_made_once(interpreter.tl.core),
        ]
    except (ImportError, AttributeError, TypeError):  # no Triton, or another one
        return
    for part in parts:
        setattr(*part)


def the_language_is_ready(interpreter):
    """For each launch, and each call of a helper, the interpreter puts its functions in again."""
    patch, no_change = interpreter._patch_lang, interpreter._LangPatchScope()

    @cache
    def patch_once(kernel):
        patch(kernel)
        return no_change

    return interpreter, "_patch_lang", patch_once


def functions_are_called_directly(interpreter):
    """Each looks first whether it is called in a kernel."""
    semantic = interpreter.interpreter_semantic

    def patch(owner, name, member, builder, scope):
        function = getattr(member, "__wrapped__", member)
        scope.set_attr(owner, name, lambda *args, **named: function(*args, **named | {"_semantic": semantic}))

    return interpreter, "_patch_attr", patch


def operands_fit_as_before(interpreter):
    """What two operands become depends on their types. NumPy repeats the smaller one without a copy."""
    tensor, semantic = interpreter.tl.tensor, interpreter.TritonSemantic
    check, known = semantic.binary_op_type_checking_impl, {}

    def operands(self, *given):
        kinds = [each.type.name if isinstance(each, tensor) else self.to_tensor_type(each) for each in given[:2]]
        key = *kinds, *given[2:]
        if key not in known:
            known[key] = [each.type for each in check(self, *given)]
        return [fit(self, *each) for each in zip(given, known[key], strict=False)]

    def fit(self, value, type):
        if not isinstance(value, tensor):
            value = self.scalar_constant(value, type.scalar)
        return value if value.type.name == type.name else tensor(self.cast(value, type.scalar).handle, type)

    return semantic, "binary_op_type_checking_impl", operands


def blocks_of_one_shape_fit(semantic):
    """Whatever the shape is."""
    fit = semantic.broadcast_impl_value
    return semantic, fit.__name__, lambda self, a, b: (a, b) if a.shape is b.shape else fit(self, a, b)


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
            known[key] = vars(self)
        self.__dict__ = known[key]

    return [(core.tensor, "__init__", value), (core.block_type, "__init__", block_type)]
