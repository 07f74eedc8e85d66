"""A step that was planned and compiled for the session's devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from minka import session
from minka.arrays import DistributedArray
from minka.errors import Error, invalid_argument
from minka.lowering import BATCH, CONSTANT, STATE, LoweredStep, check_type, host_value, lower, paths
from minka.methods import Method, Pipeline, Shard
from minka.plan import ClusterPlan, Plan
from minka.waiting import Progress, wait_for


def check_divides(step: LoweredStep, method: Method, num_devices: int) -> None:
    parts = method.num_micro_batches * (num_devices if method.splits_batch else 1)
    for leaf in step.parameters:
        if leaf.role == BATCH and leaf.shape[0] % parts != 0:
            into = f"{method.num_micro_batches} micro-batches" if method.num_micro_batches > 1 else ""
            over = f"{num_devices} devices" if method.splits_batch else ""
            raise invalid_argument(f"{leaf.name} has {leaf.shape[0]} examples along dimension 0, which "
                                   f"{' on '.join(filter(None, [into, over]))} do not divide: {type(method).__name__} takes a "
                                   f"multiple of {parts}")


def _check_loss(step: LoweredStep, method: Method) -> None:
    if isinstance(method, Pipeline) and not step.has_loss:
        raise invalid_argument("minka.Pipeline cuts the forward pass, and the step does not say what its loss is: differentiate with "
                               "minka.value_and_grad or minka.grad in place of JAX's")


def _request(step: LoweredStep, method: Method, **fields):
    from minka import _extension
    request = _extension.ParallelizeRequest()
    for name, value in (method.request(step) | {"hlo": step.hlo, "description": step.description} | fields).items():
        setattr(request, name, value)
    return request


def request_of(step: LoweredStep, method: Method, now: session.Session):
    return _request(step, method, num_devices=now.num_devices, gpu=now.gpu, gpu_memory_bytes=now.gpu_memory_bytes,
                    calibration=now.calibration, hosts_path=now.hosts, worker_binary=session.worker_binary(),
                    plugin_path=session.plugin_path(is_gpu=bool(now.gpu)))


def wait_with_progress(job, function_name: str) -> Any:
    progress = Progress(function_name, not session.is_started() or session.current().progress)
    try:
        return wait_for(job, progress.show)
    finally:
        progress.clear()


def check_question(function_name: str, pattern: str, operation: str) -> None:
    if pattern and operation:
        raise invalid_argument(f"{function_name}.explain: pattern and operation ask two things; give one of them")


def explain(step: LoweredStep, method: Method, pattern: str, operation: str, stage: int | None, executable=None) -> str:
    """As ParallelFunction.explain, of the plan of the executable or, without one, the best."""
    check_question(step.function_name, pattern, operation)
    from minka import _extension
    request = request_of(step, method, session.current())
    return wait_with_progress(_extension.start_explain(request, pattern, operation, stage, executable), step.function_name)


def plan_for_cluster(step: LoweredStep, method: Method, cluster: str) -> ClusterPlan:
    """See Lowered.plan."""
    if cluster in ("local", "local-cuda"):
        raise invalid_argument(f"{step.function_name}: cluster {cluster} is this machine: minka.init(cluster=\"{cluster}\") takes it, and "
                               "the function's method compile plans for it")
    from minka import _extension
    num_devices = _extension.num_devices_of(cluster, isinstance(method, Pipeline))
    _check_loss(step, method)
    check_divides(step, method, num_devices)
    job = _extension.start_plan(_request(step, method), cluster)
    return ClusterPlan(wait_with_progress(job, step.function_name), cluster, step.function_name)


def _difference(names: Sequence[str], planned: Sequence[Any], given: Sequence[Any]) -> str:
    """Between trees of these names; those planned have Leaf as leaves."""
    def paths_of(trees):
        return [path for name, tree in zip(names, trees) for path in paths(tree, name)]

    wanted = dict(zip(paths_of(planned), jax.tree.leaves(tuple(planned))))
    now = paths_of(given)
    missing = [leaf.name for path, leaf in wanted.items() if path not in now]
    added = [path for path in now if path not in wanted]
    return f"{missing[0]} is missing" if missing else f"{added[0]} is new" if added else (
        "its nodes are of other types, or hold other objects (an optimizer or a function that was made anew)")


def other_tree(step: LoweredStep, arguments: Sequence[Any]) -> Error:
    what = _difference(step.names, jax.tree.unflatten(step.in_tree, step.parameters), arguments)
    return invalid_argument(f"the arguments are another tree than the step was planned for: {what}; parallelize another "
                            "function for these")


class CompiledStep:
    """Runs one lowered step. Not thread-safe, but for put_batch."""

    def __init__(self, step: LoweredStep, method: Method, now: session.Session):
        """Plans and compiles, which may take minutes. Raises Error where method and step do not go together."""
        _check_loss(step, method)
        check_divides(step, method, now.num_devices)
        self.step = step
        self.method = method
        from minka import _extension
        self.executable = wait_with_progress(_extension.start_parallelize(request_of(step, method, now)), step.function_name)
        self.plan = Plan(self.executable)
        self._constants: dict[int, tuple[Any, Any]] = {}  # by parameter: what was given last, and where it lies

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """arguments: as at first but for their values. Returns what the function returns, as DistributedArrays.

        State that lies on the devices already is consumed; where the step cannot be started, it is not.
        """
        leaves = self._leaves(arguments)
        resident, inputs, values = [], [], []
        for number, (leaf, value) in enumerate(zip(self.step.parameters, leaves)):
            if leaf.role == STATE or leaf.role == CONSTANT:
                resident.append(self._resident(number, leaf, value))
                continue
            if self._is_placed(number, value):
                resident.append(value.handle)
                continue
            resident.append(None)
            inputs.append(number)
            values.append(host_value(leaf, value).reshape(-1).view(np.uint8))
        handles = self.executable.run(resident, inputs, values)
        results = [DistributedArray(handle, leaf.name, leaf.shape, leaf.dtype, (leaf.host_shape, leaf.host_dtype))
                   for handle, leaf in zip(handles, self.step.results)]
        return jax.tree.unflatten(self.step.out_tree, results)

    def _is_placed(self, number: int, value: Any) -> bool:
        return isinstance(value, DistributedArray) and self.executable.is_at(value.handle, number)

    def put_batch(self, batch: Any) -> Any:
        """The tree of the only argument that is a batch, with arrays that are on their way to the devices."""
        numbers, tree = self._numbers(BATCH, "a batch", batch)
        leaves = []
        for number, value in zip(numbers, jax.tree.leaves(batch)):
            leaf = self.step.parameters[number]
            if leaf.role == BATCH and not self._is_placed(number, value):
                value = self._array(number, self.executable.put(number, host_value(leaf, value).reshape(-1).view(np.uint8)))
            leaves.append(value)
        return jax.tree.unflatten(tree, leaves)

    def create_state(self, init: Callable, arguments: Sequence[Any]) -> Any:
        """See ParallelFunction.create_state."""
        function = lower(init, [f"argument_{i}" for i in range(len(arguments))], arguments, [])
        numbers, tree = self._numbers(STATE, "state", jax.tree.unflatten(function.out_tree, function.results))
        for number, result in zip(numbers, function.results):
            check_type(self.step.parameters[number], result)
        for leaf in (*function.parameters, *function.results):
            leaf.role = CONSTANT
        values = [host_value(leaf, value).reshape(-1).view(np.uint8)
                  for leaf, value in zip(function.parameters, jax.tree.leaves(tuple(arguments)))]
        job = self.executable.start_make_state(request_of(function, Shard(), session.current()), numbers, values)
        try:
            handles = wait_with_progress(job, self.step.function_name)
        except Error as error:
            if error.code != "UNIMPLEMENTED":
                raise
            with jax.default_device(jax.local_devices(backend="cpu")[0]):
                return self._put_state(jax.jit(init)(*arguments))
        return jax.tree.unflatten(tree, [self._array(number, handles[number]) for number in numbers])

    def _put_state(self, argument: Any) -> Any:
        """The argument's tree with its state where the step wants it; what is no state there stays as it is."""
        numbers, tree = self._numbers(STATE, "state", argument)
        leaves = [self._array(number, self._resident(number, self.step.parameters[number], value))
                  for number, value in zip(numbers, jax.tree.leaves(argument))]
        return jax.tree.unflatten(tree, leaves)

    def save(self, state: Any, folder: str, step: int, keep: int) -> str:
        numbers, _ = self._numbers(STATE, "state", state)
        handles = [None] * len(self.step.parameters)
        for number, value in zip(numbers, jax.tree.leaves(state)):
            handles[number] = self._resident(number, self.step.parameters[number], value)
        return wait_with_progress(self.executable.start_save(handles, folder, self.step.function_name, step, keep), self.step.function_name)

    def restore(self, path: str) -> Any:
        handles = wait_with_progress(self.executable.start_restore(path), self.step.function_name)
        numbers, tree = self._numbers(STATE, "state")
        return jax.tree.unflatten(tree, [self._array(number, handles[number]) for number in numbers])

    def _array(self, number: int, handle) -> DistributedArray:
        leaf = self.step.parameters[number]
        return DistributedArray(handle, leaf.name, leaf.shape, leaf.dtype, (leaf.host_shape, leaf.host_dtype))

    def _numbers(self, role: str, what: str, value: Any = None) -> tuple[list[int], Any]:
        """(parameters of the only argument that has leaves of the role, its tree); value: refused where it is another tree"""
        step = self.step
        numbered = jax.tree.unflatten(step.in_tree, range(len(step.parameters)))
        found = [i for i, argument in enumerate(numbered)
                 if any(step.parameters[number].role == role for number in jax.tree.leaves(argument))]
        if len(found) != 1:
            raise invalid_argument(f"{step.function_name} has {len(found)} arguments that are {what}; it must be one for this")
        numbers, tree = jax.tree.flatten(numbered[found[0]])
        if value is not None and jax.tree.structure(value) != tree:
            planned = jax.tree.unflatten(tree, [step.parameters[number] for number in numbers])
            difference = _difference([step.names[found[0]]], [planned], [value])
            raise invalid_argument(f"this is another tree than {what} that {step.function_name} was planned for: {difference}")
        return numbers, tree

    def check(self, arguments: Sequence[Any], num_steps: int) -> str:
        """See ParallelFunction.check."""
        leaves = self._leaves(arguments)
        values = [host_value(leaf, value).reshape(-1).view(np.uint8) for leaf, value in zip(self.step.parameters, leaves)]
        return wait_with_progress(self.executable.start_check(values, num_steps), self.step.function_name)

    def explain(self, pattern: str, operation: str, stage: int | None) -> str:
        return explain(self.step, self.method, pattern, operation, stage, self.executable)

    def _leaves(self, arguments: Sequence[Any]) -> list:
        leaves, tree = jax.tree.flatten(tuple(arguments))
        if tree != self.step.in_tree:
            raise other_tree(self.step, arguments)
        return leaves

    def _resident(self, number: int, leaf, value: Any):
        """Where the value lies as the parameter wants it; it is brought there unless it is there already."""
        if self._is_placed(number, value):
            return value.handle
        given, handle = self._constants.get(number, (None, None))
        # Unlike arrays of numpy, they do not change.
        if given is value and isinstance(value, (jax.Array, DistributedArray)):
            return handle
        handle = self.executable.put(number, host_value(leaf, value).reshape(-1).view(np.uint8))
        if leaf.role == CONSTANT:
            self._constants[number] = (value, handle)
        return handle
