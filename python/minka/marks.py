"""What a function says about itself while it is traced for minka: loss, gradients, boundaries between layers.

A mark is the identity. Stock JAX lowers it to an optimization barrier with the attribute that minka's importer reads and
removes. Outside of minka's tracing nothing is marked, and the functions here are JAX's own.
"""

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from minka.errors import invalid_argument


@dataclass
class Tracing:
    """parameter_of: the step's parameter by id of the tracer that stands for it. depth: of derivatives inside of each other."""

    parameter_of: dict[int, int] = field(default_factory=dict)
    num_boundaries: int = 0
    has_loss: bool = False
    depth: int = 0


# Of a boundary; the extension tells apart by it how often a function with a boundary inside is called (kMostLeaves there).
_MOST_LEAVES = 4096

_num_traces = itertools.count(1)
_tracing: contextvars.ContextVar[Tracing | None] = contextvars.ContextVar("minka_tracing", default=None)


@functools.cache
def _cache_key():
    import jax
    return jax.make_user_context() if hasattr(jax, "make_user_context") else None


def apart_from_other_traces() -> contextlib.AbstractContextManager:
    """Inside of it functions under jax.jit are traced anew: what JAX keeps of them has no marks, or those of another step."""
    import jax
    key = _cache_key()
    if key is not None:
        return key(next(_num_traces))
    # JAX before make_user_context.
    jax.clear_caches()
    return contextlib.nullcontext()


@contextlib.contextmanager
def tracing() -> Iterator[Tracing]:
    """Marks made inside are those of one step."""
    token = _tracing.set(Tracing())
    try:
        yield _tracing.get()
    finally:
        _tracing.reset(token)


@functools.cache
def _mark_primitive():
    from jax import lax
    from jax.experimental.xla_metadata import set_xla_metadata
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive("minka_mark")
    primitive.multiple_results = True
    primitive.def_impl(lambda *values, text: list(values))
    primitive.def_abstract_eval(lambda *values, text: list(values))
    # The mark belongs to the values: their tangents pass unmarked.
    ad.primitive_jvps[primitive] = lambda primals, tangents, *, text: (primitive.bind(*primals, text=text), list(tangents))
    batching.primitive_batchers[primitive] = lambda values, dims, *, text: (primitive.bind(*values, text=text), list(dims))

    def lower(*values, text):
        with set_xla_metadata(**{"minka.mark": text}):
            return list(lax.optimization_barrier(values))

    mlir.register_lowering(primitive, mlir.lower_fun(lower, multiple_results=True))
    return primitive


def _mark(value, text: str):
    return _mark_primitive().bind(value, text=text)[0]


def _mark_loss_behind(gradients, loss):
    """The gradients, which keep the marked loss: JAX does not lower what nothing reads."""
    import jax
    leaves, tree = jax.tree.flatten(gradients)
    return jax.tree.unflatten(tree, _mark_primitive().bind(loss, *leaves, text="loss 0")[1:])


def mark_boundary(x: Any) -> Any:
    """Ends a layer: what computes x belongs to it, what reads it to the next one. x: an array or a tree of them, which is
    returned. minka.Pipeline cuts at boundaries; without minka it is the identity."""
    now = _tracing.get()
    if now is None:
        return x
    import jax
    number = now.num_boundaries
    now.num_boundaries += 1
    leaves, tree = jax.tree.flatten(x)
    return jax.tree.unflatten(tree, [_mark(leaf, f"layer_boundary {number * _MOST_LEAVES + i}") for i, leaf in enumerate(leaves)])


def _mark_gradients(gradients: Any, of: Any, parameter_of: dict[int, int]) -> Any:
    import jax
    parameters = [parameter_of.get(id(leaf)) for leaf in jax.tree.leaves(of)]
    # Where they are gradients of something else (a copy of the parameters in another type), minka finds out itself what is
    # made of them.
    if None in parameters:
        return gradients
    leaves, tree = jax.tree.flatten(gradients)
    return jax.tree.unflatten(tree, [_mark(leaf, f"gradient {parameter}") for leaf, parameter in zip(leaves, parameters)])


def value_and_grad(fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False, **options) -> Callable:
    """jax.value_and_grad, which also tells minka what loss and gradients are. Same arguments and results.

    Raises Error INVALID_ARGUMENT where a step does so twice.
    """
    return _differentiates(fun, argnums, has_aux, options, returns_loss=True)


def _differentiates(fun, argnums, has_aux, options, returns_loss: bool) -> Callable:
    import jax
    differentiate = jax.value_and_grad(fun, argnums=argnums, has_aux=has_aux, **options)

    @functools.wraps(fun)
    def value_and_gradients(*args, **kwargs):
        now = _tracing.get()
        if now is None:
            return differentiate(*args, **kwargs)
        now.depth += 1
        value, gradients = differentiate(*args, **kwargs)
        now.depth -= 1
        # A derivative inside of another one is part of the loss.
        if now.depth > 0:
            return value, gradients
        if now.has_loss:
            raise invalid_argument("the step calls minka.grad or minka.value_and_grad twice; a step has one loss: use jax.grad "
                                   "for what is not differentiated for the update, or two steps")
        now.has_loss = True
        of = [args[i] for i in argnums] if isinstance(argnums, Sequence) else args[argnums]
        loss, *aux = value if has_aux else (value,)
        gradients = _mark_gradients(gradients, of, now.parameter_of)
        if returns_loss:
            loss = _mark(loss, "loss 0")
        else:
            gradients = _mark_loss_behind(gradients, loss)
        return (loss, *aux) if has_aux else loss, gradients

    return value_and_gradients


def grad(fun: Callable, argnums: int | Sequence[int] = 0, has_aux: bool = False, **options) -> Callable:
    """jax.grad, as value_and_grad above."""
    differentiate = _differentiates(fun, argnums, has_aux, options, returns_loss=False)

    @functools.wraps(fun)
    def gradients_of(*args, **kwargs):
        value, gradients = differentiate(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradients_of
