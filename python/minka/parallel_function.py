"""minka.parallelize."""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from minka import session
from minka.errors import failed_precondition, invalid_argument
from minka.methods import Method, SavedPlan, Shard
from minka.plan import ClusterPlan, Plan


class Lowered:
    """A step before it is planned.

    hlo: serialised HloModuleProto. parameters, results: its arrays, each with name, shape, dtype and role.
    """

    def __init__(self, step, method: Method, follows: str = ""):
        """follows: name of the function whose plan it takes."""
        self.step = step
        self.method = method
        self.follows = follows
        self.hlo, self.parameters, self.results = step.hlo, step.parameters, step.results

    def plan(self, cluster: str | os.PathLike) -> ClusterPlan:
        """The best plan for a cluster that need not be at hand: nothing runs, and minka.init is not needed.

        cluster: a preset such as "p3.16xlarge:8" (eight hosts) or "p3.16xlarge:1x4" (four devices of one), or a .json file of one
            (docs/guides/planning.md); for minka.Pipeline also several, joined by commas. Costs are by its rates. A device holds
            what it has, unless the method says peak_memory_bytes.
        Raises Error NOT_FOUND for a preset that there is not, INVALID_ARGUMENT where method, batch and cluster do not go together,
            RESOURCE_EXHAUSTED where no plan fits, FAILED_PRECONDITION for a function that follows another or takes a plan of a file.
        """
        self._check_is_planned(f"nothing is planned for {cluster}")
        from minka.compiled import plan_for_cluster
        return plan_for_cluster(self.step, self.method, os.fspath(cluster))

    def explain(self, pattern: str = "", *, operation: str = "", stage: int | None = None) -> str:
        """As ParallelFunction.explain, about the best plan, which is searched for first and not kept.

        Raises Error as plan does.
        """
        self._check_is_planned("explain is a method of the function, once it is compiled")
        from minka.compiled import explain
        return explain(self.step, self.method, pattern, operation, stage)

    def _check_is_planned(self, of_saved_plan: str) -> None:
        """of_saved_plan: what is said where a saved plan is taken."""
        name = self.step.function_name
        if self.follows:
            raise failed_precondition(f"{name} follows {self.follows} and has no plan of its own; ask {self.follows}")
        if isinstance(self.method, SavedPlan):
            raise failed_precondition(f"{name} takes a plan of a file: {of_saved_plan}")


class ParallelFunction:
    """A JAX function that runs on all devices; see parallelize."""

    def __init__(self, function: Callable, method: Method, batch_argnums: int | Sequence[int] | None,
                 static_argnums: int | Sequence[int]):
        functools.update_wrapper(self, function)
        self._function = function
        self._method = method
        self._batch_argnums = (batch_argnums,) if isinstance(batch_argnums, int) else batch_argnums
        self._static_argnums = (static_argnums,) if isinstance(static_argnums, int) else static_argnums

    def __call__(self, *args, **kwargs) -> Any:
        """What the function returns, its arrays as minka.DistributedArray. The first call plans and compiles."""
        positional = self._positional(args, kwargs)
        compiled = self._compiled(positional)
        return compiled(self._split(positional)[0])

    def lower(self, *args, **kwargs) -> "Lowered":
        """The step that minka plans: HLO, names and roles; plans nothing. Arguments may be abstract (jax.ShapeDtypeStruct)."""
        return Lowered(self._lower(self._positional(args, kwargs)), self._method)

    def compile(self, *args, **kwargs) -> Plan:
        """Plans and compiles for such arguments, which may be abstract, and runs nothing."""
        return self._compiled(self._positional(args, kwargs)).plan

    @property
    def plan(self) -> Plan:
        """Of the step that was compiled last. Raises Error FAILED_PRECONDITION before the first call."""
        return self._last().plan

    def create_state(self, init: Callable, *args) -> Any:
        """What the JAX function init(*args) returns, laid out as this function's state: what it takes first and returns.

        Every device makes the part that it keeps: init is planned with the placement of this function's plan and runs where that
        does, so that neither this process nor a device holds the state as a whole. Values are those that one device makes. What calls
        libraries of the host (SVD) cannot run there: then init runs on this process's CPU, and its result is copied.
        Abstract arguments plan before: train_step.compile(jax.eval_shape(init, *args), batch).
        Raises Error FAILED_PRECONDITION before the function is compiled, INVALID_ARGUMENT for another tree, shape or type.
        """
        return self._last().create_state(init, args)

    def put_batch(self, batch: Any) -> Any:
        """The batch with its arrays on their way to the devices, for a call of this function; as it is before that is compiled.

        Waits for no step. Raises Error INVALID_ARGUMENT for another tree, shape or type than the function was compiled for.
        """
        steps = self._steps()
        return self._last().put_batch(batch) if steps else batch

    def save(self, folder: str | os.PathLike, state: Any, *, step: int, keep: int = 3) -> str:
        """Writes a checkpoint of the state, whole arrays by their paths in safetensors files, and returns its folder.

        folder: of checkpoints, made where needed. step: how many were done; the checkpoint is folder/step_00000100. Of those in the
        folder the newest `keep` stay. What has that name is complete, whenever the process dies.
        Raises Error FAILED_PRECONDITION before the function is compiled or for state that was consumed.
        """
        if keep < 1:
            raise invalid_argument(f"{self.__name__}.save: keep is {keep}; at least the checkpoint that is written stays")
        return self._last().save(state, os.fspath(folder), step, keep)

    def restore(self, path: str | os.PathLike) -> Any:
        """State from a checkpoint, or the newest of a folder, laid out as this function's plan wants it, whatever plan wrote it.

        Raises Error NOT_FOUND where there is none, INVALID_ARGUMENT where it is damaged or of other parameters (the first is
        named), FAILED_PRECONDITION before the function is compiled.
        """
        return self._last().restore(os.fspath(path))

    def check(self, *args, num_steps: int = 1, **kwargs) -> str:
        """Runs so many steps from these arguments, on all devices and on one, and returns a table of what differs most.

        Every step is given the same batch. No state is consumed. Equal is what docs/design/0005 says: as near as rounding lets
        one device come to itself. The one device is of this process, which loads the plugin for it.
        Raises Error ABORTED where the plan computes something else, with the results that do and, on one mesh, where that begins.
        """
        positional = self._positional(args, kwargs)
        return self._compiled(positional).check(self._split(positional)[0], num_steps)

    def explain(self, pattern: str = "", *, operation: str = "", stage: int | None = None) -> str:
        """Why the plan is as it is: what its parts cost, and what the plans next to it would.

        pattern: glob on parameter names, e.g. "params/*kernel", of which the first match is taken: a table of the best plans with
            each sharding that it could have. operation: the same of an operation, by its name or its name in the model.
        stage: of a pipeline, alone: why it has these layers and this mesh; else where to look. Without any, the plan as a whole.
        Raises Error NOT_FOUND where none matches, FAILED_PRECONDITION before the first call.
        """
        return self._last().explain(pattern, operation, stage)

    def dump(self, folder: str) -> None:
        """Writes the plan, the local programs and what every device holds below the folder, which is made."""
        self._last().executable.dump(str(folder))

    def _steps(self) -> dict:
        return session.current().compiled.setdefault(self, {})

    def _last(self):
        steps = self._steps()
        if not steps:
            raise failed_precondition(f"{self.__name__} has no plan yet; call it, or its method compile, first")
        return list(steps.values())[-1]

    def _positional(self, args: tuple, kwargs: dict) -> tuple:
        if not kwargs:
            return args
        bound = inspect.signature(self._function).bind(*args, **kwargs)
        if bound.kwargs:
            raise invalid_argument(f"{self.__name__}: {next(iter(bound.kwargs))} can be given by its name only; make it an argument "
                                   "that has a position")
        return bound.args

    def _is_static(self, number: int, count: int) -> bool:
        return number in self._static_argnums or number - count in self._static_argnums

    def _split(self, args: tuple) -> tuple[list, tuple]:
        """(arguments that are arrays, static ones with their numbers)"""
        if not self._static_argnums:
            return list(args), ()
        count = len(args)
        static = tuple((i, arg) for i, arg in enumerate(args) if self._is_static(i, count))
        for number, value in static:
            try:
                hash(value)
            except TypeError as error:
                raise invalid_argument(f"{self.__name__}: argument {self._names(count)[number]} is static and of type "
                                       f"{type(value).__name__}, which cannot be hashed; give a tuple or another hashable "
                                       "value") from error
        return [arg for i, arg in enumerate(args) if not self._is_static(i, count)], static

    def _compiled(self, args: tuple):
        steps = self._steps()
        static = self._split(args)[1]
        if static not in steps:
            from minka.compiled import CompiledStep
            steps[static] = CompiledStep(self._lower(args), self._method, session.current())
        return steps[static]

    def _lower(self, args: tuple):
        from minka.lowering import lower
        dynamic, static = self._split(args)
        numbers = [i for i in range(len(args)) if i not in dict(static)]
        names = self._names(len(args))
        if self._batch_argnums is None:
            batch = numbers[-1:] if len(numbers) > 1 else []
        else:
            strange = [i for i in self._batch_argnums if not -len(args) <= i < len(args)]
            if strange:
                raise invalid_argument(f"{self.__name__}: batch_argnums names argument {strange[0]}, and {len(args)} are given")
            batch = [i % len(args) for i in self._batch_argnums]
        strange = [i for i in batch if i not in numbers]
        if strange:
            raise invalid_argument(f"{self.__name__}: batch_argnums names argument {strange[0]}, which is static")

        def of_arrays(*arrays):
            filled = dict(static) | dict(zip(numbers, arrays))
            return self._function(*(filled[i] for i in range(len(args))))

        of_arrays.__name__ = self.__name__
        return lower(of_arrays, [names[i] for i in numbers], dynamic, [numbers.index(i) for i in batch])

    def _names(self, count: int) -> list[str]:
        """Of the positional parameters."""
        names = []
        for parameter in inspect.signature(self._function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                break
            names.append(parameter.name)
        return names[:count] + [f"argument_{i}" for i in range(len(names), count)]


class FollowingFunction(ParallelFunction):
    """A function that runs on the state of another one, see parallelize."""

    def __init__(self, function: Callable, follow: ParallelFunction, batch_argnums: int | Sequence[int] | None,
                 static_argnums: int | Sequence[int]):
        super().__init__(function, follow._method, batch_argnums, static_argnums)
        self._follow = follow

    def lower(self, *args, **kwargs) -> Lowered:
        """As ParallelFunction.lower; it has no plan of its own to ask for."""
        return Lowered(self._lower(self._positional(args, kwargs)), self._method, follows=self._follow.__name__)

    def _compiled(self, args: tuple):
        from minka.following import FollowingStep, owner_of
        dynamic, static = self._split(args)
        training = owner_of(dynamic, list(self._follow._steps().values()), self.__name__)
        steps = self._steps()
        if (static, training) not in steps:
            steps[static, training] = FollowingStep(self._lower(args), training, dynamic)
        return steps[static, training]

    def _last(self):
        raise failed_precondition(f"{self.__name__} follows {self._follow.__name__}; ask that for plan, programs, checks and state")


def parallelize(function: Callable | None = None, *, method: Method | None = None, plan: str | os.PathLike | None = None,
                follow: ParallelFunction | None = None, batch_argnums: int | Sequence[int] | None = None,
                static_argnums: int | Sequence[int] = ()) -> Callable:
    """Makes a JAX function, most often a training step, run on all devices of minka.init. Also a decorator.

    function: of arrays and trees of them. Of what it returns, the tree that is like its first argument (or like another one that
        is no batch) is that argument's new value: state, which stays on the devices and is consumed by the next call.
    method: minka.Shard, DataParallel, Zero2, Zero3 or Pipeline; Shard() unless told.
    plan: a plan.json that was saved, in place of a method: nothing is searched for. It is refused for another function, or sizes.
    follow: a parallelised training step, in place of a method: this function reads that one's state where it lies, on its mesh or as a
        pipeline of its stages, and consumes nothing. What it returns comes as numpy arrays.
    batch_argnums: arguments whose arrays count examples along dimension 0; the last one unless told.
    static_argnums: hashable arguments that are no arrays; for every value of them the function is planned anew.
    Raises Error (see its code) for what cannot be planned; other trees, shapes or types than at the first call are refused.
    """
    if sum(how is not None for how in (method, plan, follow)) > 1:
        raise invalid_argument("minka.parallelize: method, plan and follow each say how; give one of them")
    if function is None:
        return functools.partial(parallelize, method=method, plan=plan, follow=follow, batch_argnums=batch_argnums, static_argnums=static_argnums)
    if follow is not None:
        return FollowingFunction(function, follow, batch_argnums, static_argnums)
    how = SavedPlan(path=os.fspath(plan)) if plan is not None else method or Shard()
    return ParallelFunction(function, how, batch_argnums, static_argnums)
