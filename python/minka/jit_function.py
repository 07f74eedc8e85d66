"""minka.jit."""

import atexit
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from minka.methods import Method, Shard
from minka.parallel_function import ParallelFunction
from minka.plan import Plan

# By function, then by static arguments. JAX's caches keep functions until the process ends, and no plan is to live as long.
_planned: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
atexit.register(_planned.clear)


class JitFunction(ParallelFunction):
    """A JAX function that minka plans and JAX runs; see jit."""

    def __init__(self, function: Callable, method: Method, mesh, cluster: str, batch_argnums: int | Sequence[int] | None,
                 static_argnums: int | Sequence[int]):
        super().__init__(function, method, batch_argnums, static_argnums)
        self._mesh = mesh
        self._cluster = cluster

    def __call__(self, *args, **kwargs) -> Any:
        """What the function returns, its arrays as jax.Array. The first call plans, and JAX compiles."""
        positional = self._positional(args, kwargs)
        return self._compiled(positional)(self._split(positional)[0])

    def compile(self, *args, **kwargs) -> Plan:
        """Plans for such arguments, which may be abstract; JAX compiles at the first call."""
        return super().compile(*args, **kwargs)

    def trace(self, *args, **kwargs) -> "jax.stages.Traced":
        """A jax.stages.Traced, as jax.jit's. Arguments may be abstract."""
        program = self._compiled(self._positional(args, kwargs))
        return program.jitted.trace(*program.abstract())

    def lower(self, *args, **kwargs) -> "jax.stages.Lowered":
        """A jax.stages.Lowered, as jax.jit's. Arguments may be abstract."""
        return self.trace(*args, **kwargs).lower()

    def jax_shardings(self, *args, **kwargs) -> tuple[Any, Any]:
        """Trees of NamedShardings: of the arguments that are not static, a tuple, and of the results.

        For such arguments, which may be abstract; without any, those of the step that was planned last.
        """
        return (self._compiled(self._positional(args, kwargs)) if args or kwargs else self._last()).shardings()

    def dump(self, folder: str) -> None:
        """Writes the plan and the program of one device below the folder, which is made."""
        super().dump(folder)

    def _steps(self) -> dict:
        return _planned.setdefault(self, {})

    def _compiled(self, args: tuple):
        static = self._split(args)[1]
        steps = self._steps()
        if static not in steps:
            from minka.jax_program import JaxProgram
            steps[static] = JaxProgram(self.__name__, self._lower(args), self._method, self._mesh, self._cluster)
        return steps[static]


def jit(function: Callable | None = None, *, method: Method = Shard(), mesh: Any = None, cluster: str = "",
        batch_argnums: int | Sequence[int] | None = None, static_argnums: int | Sequence[int] = ()) -> Callable:
    """jax.jit with minka's plan written into it: minka plans the function, JAX runs it. Also a decorator. Needs no minka.init.

    function, batch_argnums, static_argnums, errors: as of minka.parallelize. State is donated.
    method: minka.Shard, DataParallel, Zero2 or Zero3.
    mesh: a jax.sharding.Mesh or AbstractMesh, whose axes the plan is to use; None: minka decides, for all of JAX's devices or as many
        as method.mesh or minka.init say.
    cluster: what the devices are, for planning: a preset such as "p3.16xlarge:8" or a .json file; empty: virtual devices of this
        machine.
    """
    if function is None:
        return functools.partial(jit, method=method, mesh=mesh, cluster=cluster, batch_argnums=batch_argnums,
                                 static_argnums=static_argnums)
    return JitFunction(function, method, mesh, cluster, batch_argnums, static_argnums)
