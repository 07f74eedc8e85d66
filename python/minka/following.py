"""A step that reads the state of another one where it lies: an evaluation during training."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from minka import session
from minka.arrays import DistributedArray
from minka.compiled import CompiledStep, other_tree, request_of, wait_with_progress
from minka.errors import failed_precondition, invalid_argument
from minka.lowering import BATCH, CONSTANT, LoweredStep, host_value
from minka.methods import Shard


def owner_of(arguments: Sequence[Any], candidates: Sequence[CompiledStep], name: str) -> CompiledStep:
    """The candidate that made the arrays among the arguments; Error FAILED_PRECONDITION where none did."""
    for leaf in jax.tree.leaves(arguments):
        for candidate in candidates:
            if isinstance(leaf, DistributedArray) and candidate.executable.is_at(leaf.handle, leaf.handle.parameter):
                return candidate
    raise failed_precondition(f"{name} takes no state of the function that it follows; give it what that returned last")


class FollowingStep:
    """Not thread-safe."""

    def __init__(self, step: LoweredStep, training: CompiledStep, arguments: Sequence[Any]):
        """step: lowered from the arguments, whose arrays of training say which parameters it reads."""
        self.step = step
        self.training = training
        self.plan = training.plan
        self._state: dict[int, int] = {}  # training's parameter by the step's
        for number, (leaf, value) in enumerate(zip(step.parameters, jax.tree.leaves(tuple(arguments)))):
            if isinstance(value, DistributedArray) and training.executable.is_at(value.handle, value.handle.parameter):
                self._state[number] = value.handle.parameter
                leaf.name, leaf.role = training.step.parameters[value.handle.parameter].name, CONSTANT
            else:
                leaf.counts_examples = leaf.role == BATCH
                leaf.role = BATCH
        for leaf in step.results:
            leaf.role = CONSTANT
        job = training.executable.start_follow(request_of(step, Shard(), session.current()))
        self._follower = wait_with_progress(job, step.function_name)

    def __call__(self, arguments: Sequence[Any]) -> Any:
        leaves, tree = jax.tree.flatten(tuple(arguments))
        if tree != self.step.in_tree:
            raise other_tree(self.step, arguments)
        state = [None] * len(self.training.step.parameters)
        values = []
        for number, (leaf, value) in enumerate(zip(self.step.parameters, leaves)):
            if number not in self._state:
                values.append(host_value(leaf, value).reshape(-1).view(np.uint8))
            elif isinstance(value, DistributedArray) and self.training.executable.is_at(value.handle, self._state[number]):
                state[self._state[number]] = value.handle
            else:
                raise invalid_argument(f"{leaf.name} is not the state of {self.training.step.function_name}; give what that returned")
        results = wait_with_progress(self._follower.start_run(state, values), self.step.function_name)
        arrays = [value.view(leaf.host_dtype).reshape(leaf.host_shape) for leaf, value in zip(self.step.results, results)]
        return jax.tree.unflatten(self.step.out_tree, arrays)
