"""From a JAX function to what minka reads: an HLO module and what its parameters and results mean."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from minka import marks
from minka.arrays import DistributedArray
from minka.errors import invalid_argument

STATE, BATCH, KEY, CONSTANT = "state", "batch", "key", "constant"


@dataclass
class Leaf:
    """One array among arguments or results. shape and dtype are JAX's, host_* those of its bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    host_shape: tuple[int, ...]
    host_dtype: np.dtype
    role: str = CONSTANT
    counts_examples: bool = True  # of a batch: along dimension 0
    state_result: int = -1  # of a state parameter: the result that is its new value

    @property
    def is_key(self) -> bool:
        """Random keys, whose bytes have dimensions of their own behind the shape."""
        return _is_key(self.dtype)


@dataclass
class LoweredStep:
    """A step as minka's planner takes it. hlo: serialised HloModuleProto. names: of the arguments. has_loss: is one marked?"""

    hlo: bytes
    has_loss: bool
    names: Sequence[str]
    parameters: list[Leaf]
    results: list[Leaf]
    in_tree: Any
    out_tree: Any
    function_name: str = "step"

    @property
    def description(self) -> str:
        """The attribute `minka.step`."""
        parameters = [{"name": leaf.name, "role": leaf.role}
                      | ({"state_result": leaf.state_result} if leaf.role == STATE else {})
                      | ({"batch_dim": 0} if leaf.role == BATCH and leaf.counts_examples else {}) for leaf in self.parameters]
        results = [{"name": leaf.name, "role": STATE if leaf.role == STATE else "metric"} for leaf in self.results]
        return json.dumps({"schema_version": 1, "parameters": parameters, "results": results})


def _is_key(dtype) -> bool:
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _abstract(name: str, value: Any) -> jax.ShapeDtypeStruct:
    if isinstance(value, (bool, int, float, complex)):
        return jax.ShapeDtypeStruct((), jax.numpy.result_type(value), weak_type=True)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise invalid_argument(f"{name} is {type(value).__name__}, which is no array; name its argument in static_argnums, or "
                               "leave it out of the tree")
    dtype = value.dtype if _is_key(value.dtype) else jax.dtypes.canonicalize_dtype(value.dtype)
    return jax.ShapeDtypeStruct(value.shape, dtype, weak_type=getattr(value, "weak_type", False))


def _leaf(name: str, abstract) -> Leaf:
    host = jax.eval_shape(jax.random.key_data, abstract) if _is_key(abstract.dtype) else abstract
    return Leaf(name, abstract.shape, abstract.dtype, host.shape, np.dtype(host.dtype))


def check_type(leaf: Leaf, value: Any) -> None:
    """value: an array or a tracer. Raises Error for another shape or type than the step was planned for."""
    if tuple(value.shape) != leaf.shape or value.dtype != leaf.dtype:
        raise invalid_argument(f"{leaf.name} is {value.dtype}{list(value.shape)}; the step was planned for "
                               f"{leaf.dtype}{list(leaf.shape)}: give arrays of one size, or parallelize another function for these")


def host_value(leaf: Leaf, value: Any) -> np.ndarray:
    """The value as it is copied to the devices. Raises Error for another shape or type than the step was planned for."""
    is_distributed = isinstance(value, DistributedArray)
    check_type(leaf, value if is_distributed else _abstract(leaf.name, value))
    if leaf.is_key and not is_distributed:
        value = jax.random.key_data(value)
    return np.ascontiguousarray(np.asarray(value, leaf.host_dtype))


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def paths(tree: Any, prefix: str) -> list[str]:
    """Of the leaves, in their order: "params/h_3/kernel"."""
    return [_join(prefix, jax.tree_util.keystr(path, simple=True, separator="/"))
            for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _is_random_key(leaf: Leaf) -> bool:
    return _is_key(leaf.dtype) or (leaf.dtype == np.uint32 and leaf.shape == (2,))


def _check_batch(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves[1:]:
        if leaf.shape[0] != leaves[0].shape[0]:
            raise invalid_argument(f"{leaf.name} has {leaf.shape[0]} examples along dimension 0, {leaves[0].name} has "
                                   f"{leaves[0].shape[0]}; what does not count examples is to be an argument of its own, which "
                                   "batch_argnums does not name")


def _match_state(argument: Sequence[Leaf], first_result: int, results: Sequence[Leaf]) -> None:
    """The results from first_result on are the new values of the argument's leaves."""
    for i, (old, new) in enumerate(zip(argument, results[first_result:])):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise invalid_argument(f"{old.name} goes in as {old.dtype}{list(old.shape)} and comes out as "
                                   f"{new.dtype}{list(new.shape)}; state keeps its shape and type")
        old.role = new.role = STATE
        old.state_result = first_result + i
        new.name = old.name


def lower(function: Callable, names: Sequence[str], arguments: Sequence[Any], batch: Sequence[int]) -> LoweredStep:
    """function: of the arguments, without static ones. names: theirs. batch: which of them are batches.

    State is what comes back: of an argument that is no batch and whose tree the function returns, alone or as one of several
    results, the leaves are state; the first such argument takes the first such result. (A tree that is a single array counts
    for the first argument only: a learning rate is no state because the loss has its shape.) Arrays of a batch count examples
    along dimension 0. Other arguments are random keys or constants.
    """
    named = [paths(argument, name) for name, argument in zip(names, arguments)]
    leaves, in_tree = jax.tree.flatten(tuple(arguments))
    abstract = [_abstract(name, leaf) for name, leaf in zip((name for group in named for name in group), leaves)]
    outcome = {}

    def of_leaves(*tracers):
        with marks.tracing() as now:
            now.parameter_of.update({id(tracer): i for i, tracer in enumerate(tracers)})
            out = function(*jax.tree.unflatten(in_tree, tracers))
        outcome["has_loss"] = now.has_loss
        parts = list(out) if type(out) in (tuple, list) else [out]
        outcome["parts"] = [jax.tree.structure(part) for part in parts]
        outcome["names"] = paths(out, "result")
        flat, outcome["tree"] = jax.tree.flatten(out)
        return flat

    of_leaves.__name__ = getattr(function, "__name__", "step")
    with marks.apart_from_other_traces():
        lowered = jax.jit(of_leaves, keep_unused=True).trace(*abstract).lower(lowering_platforms=("cpu",))
    results = [_leaf(name, info) for name, info in zip(outcome["names"], jax.tree.leaves(lowered.out_info))]
    groups = _arguments(named, abstract, names, arguments, batch, outcome["parts"], results)
    hlo = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return LoweredStep(hlo, outcome["has_loss"], names, [leaf for group in groups for leaf in group], results, in_tree,
                       outcome["tree"], of_leaves.__name__)


def _arguments(named, abstract, names, arguments, batch, parts, results) -> list[list[Leaf]]:
    """The leaves of every argument with their roles; names the results that are state."""
    numbers = iter(abstract)
    groups = [[_leaf(name, next(numbers)) for name in group] for group in named]
    starts = list(itertools.accumulate((part.num_leaves for part in parts), initial=0))
    free = list(range(len(parts)))
    state = []
    for number, argument in enumerate(arguments):
        if number in batch:
            rows = [leaf for leaf in groups[number] if leaf.shape]
            _check_batch(rows)
            for leaf in rows:
                leaf.role = BATCH
            continue
        tree = jax.tree.structure(argument)
        is_leaf = jax.tree_util.treedef_is_leaf(tree)
        part = next((part for part in free if parts[part] == tree and tree.num_leaves > 0), None)
        if part is not None and (number == 0 or not is_leaf):
            _match_state(groups[number], starts[part], results)
            free.remove(part)
            state.append(number)
            continue
        for leaf in groups[number]:
            leaf.role = KEY if _is_random_key(leaf) else CONSTANT
    if len(state) == 1:
        _drop_prefix(names[state[0]], groups[state[0]], results)
    return groups


def _drop_prefix(prefix: str, leaves: Sequence[Leaf], results: Sequence[Leaf]) -> None:
    """The paths of the only state need not say whose they are."""
    for leaf in leaves:
        leaf.name = leaf.name.removeprefix(prefix + "/")
        results[leaf.state_result].name = leaf.name
