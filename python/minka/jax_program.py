"""A planned step as a function that JAX compiles and runs: minka's program of one device, inside jax.shard_map."""

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from minka import session
from minka.compiled import check_divides, other_tree
from minka.errors import failed_precondition, invalid_argument
from minka.lowering import STATE, Leaf, LoweredStep, check_type, host_value
from minka.methods import Method, OneMesh
from minka.plan import Plan


def _mesh_text(mesh: Mesh | AbstractMesh) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())


def _method_on(method: Method, mesh: Mesh | AbstractMesh | None) -> OneMesh:
    """The method, told to plan for the axes of the mesh."""
    if not isinstance(method, OneMesh):
        raise invalid_argument(f"minka.jit plans for one mesh, which {type(method).__name__} cuts into several: take minka.parallelize, "
                               "which runs pipelines by itself")
    if mesh is None:
        return method
    if method.mesh not in ("", _mesh_text(mesh)):
        raise invalid_argument(f"minka.jit is given the mesh {_mesh_text(mesh)} and a method for {method.mesh}: leave one out")
    return dataclasses.replace(method, mesh=_mesh_text(mesh))


def _size_of(mesh: str) -> int:
    """Of "data=2,model=4" or "2x4"."""
    return math.prod(map(int, re.findall(r"\d+(?=x|,|$)", mesh)))


def _num_devices(method: OneMesh, mesh: Mesh | AbstractMesh | None) -> int:
    if mesh is not None:
        return mesh.size
    if method.mesh:
        return _size_of(method.mesh)
    return session.current().num_devices if session.is_started() else jax.device_count()


def _jax_devices(count: int) -> list:
    devices = jax.devices()
    if len(devices) < count:
        platform = devices[0].platform
        way_out = (f"XLA_FLAGS=--xla_force_host_platform_device_count={count}, set before JAX starts, gives virtual ones"
                   if platform == "cpu" else "plan for an AbstractMesh, or for fewer")
        raise failed_precondition(f"the plan is for {count} devices, and JAX has {len(devices)} of platform {platform}: {way_out}")
    return devices[:count]


def _plan(step: LoweredStep, method: OneMesh, num_devices: int, cluster: str):
    from minka import _extension
    request = _extension.ParallelizeRequest()
    for name, value in (method.request() | {"hlo": step.hlo, "description": step.description, "num_devices": num_devices}).items():
        setattr(request, name, value)
    return _extension.plan_for_jax(request, cluster)


def _compiler_options(mesh: Mesh | AbstractMesh) -> dict:
    """What keeps XLA from planning again; none where the platform is not known yet."""
    from minka import _extension
    return {} if isinstance(mesh, AbstractMesh) else _extension.compiler_options(mesh.devices.flat[0].platform)


def _to_stablehlo(hlo: bytes) -> bytes:
    try:
        from jax.extend.mlir import hlo_to_stablehlo
    except ImportError:  # JAX before 0.8 has it for its own use only.
        from jaxlib._jax.mlir import hlo_to_stablehlo
    return hlo_to_stablehlo(hlo)


@dataclasses.dataclass(frozen=True, eq=False)
class _LocalProgram:
    """What one device runs."""

    name: str
    stablehlo: bytes = dataclasses.field(repr=False)
    results: Sequence[jax.ShapeDtypeStruct] = dataclasses.field(repr=False)


@functools.cache
def _program_primitive():
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.extend.mlir.dialects import func
    from jax.interpreters import mlir

    primitive = Primitive("minka_program")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *_, program: [ShapedArray(result.shape, result.dtype) for result in program.results])

    def lower(context, *operands, program):
        module = mlir.ir.Module.parse(program.stablehlo)
        types = mlir.ir.SymbolTable(module.operation)["main"].type.results
        name = mlir.merge_mlir_modules(context.module_context.module, program.name, module,
                                       dst_symtab=context.module_context.symbol_table)
        return func.CallOp(types, mlir.ir.FlatSymbolRefAttr.get(name), operands).results

    mlir.register_lowering(primitive, lower)
    return primitive


def _spec(dims: Sequence[Sequence[str]]) -> PartitionSpec:
    parts = [tuple(axes) if len(axes) > 1 else axes[0] if axes else None for axes in dims]
    while parts and parts[-1] is None:
        parts.pop()
    return PartitionSpec(*parts)


def _of_data(leaf: Leaf, data):
    """Random keys of their data, and any other array as it is."""
    if not leaf.is_key:
        return data
    impl = []
    jax.eval_shape(lambda keys: impl.append(jax.random.key_impl(keys)), jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return jax.random.wrap_key_data(data, impl=impl[0])


class JaxProgram:
    """A step that minka planned and JAX runs. jitted: jax.jit of a function from leaves to leaves."""

    def __init__(self, name: str, step: LoweredStep, method: Method, mesh: Mesh | AbstractMesh | None, cluster: str):
        """Plans, which may take minutes. Raises Error where method, mesh and step do not go together."""
        method = _method_on(method, mesh)
        num_devices = _num_devices(method, mesh)
        devices = _jax_devices(num_devices) if mesh is None else None
        check_divides(step, method, num_devices)
        self.step = step
        self.executable = planned = _plan(step, method, num_devices, cluster)
        self.plan = Plan(planned)
        names, sizes = zip(*planned.mesh)
        self._mesh = mesh if mesh is not None else Mesh(np.array(devices).reshape(sizes), names)
        self._shardings = [self._sharding(leaf, array) for leaf, array in zip(step.parameters, planned.parameters)]
        self._result_shardings = [self._sharding(leaf, array) for leaf, array in zip(step.results, planned.results)]
        self._program = _LocalProgram(name, _to_stablehlo(planned.hlo), self._local_results())
        # State first and in the order of the parameters: JAX pairs what is donated with the first result of its shape.
        state = [leaf.state_result for leaf in step.parameters if leaf.role == STATE]
        self._order = state + [i for i in range(len(step.results)) if i not in set(state)]
        self._place = [self._order.index(i) for i in range(len(step.results))]

        def of_leaves(*leaves):
            return self._of_leaves(leaves)

        of_leaves.__name__ = name
        self.jitted = jax.jit(of_leaves, in_shardings=tuple(self._shardings),
                              out_shardings=[self._result_shardings[i] for i in self._order],
                              donate_argnums=[i for i, leaf in enumerate(step.parameters) if leaf.role == STATE],
                              compiler_options=_compiler_options(self._mesh) or None)

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Runs a step; what is state is donated."""
        if isinstance(self._mesh, AbstractMesh):
            raise failed_precondition(f"the plan is for {_mesh_text(self._mesh)}, an AbstractMesh without devices: give minka.jit a "
                                      "jax.sharding.Mesh to run on, or use compile, trace, lower and jax_shardings")
        leaves, tree = jax.tree.flatten(tuple(arguments))
        if tree != self.step.in_tree:
            raise other_tree(self.step, arguments)
        placed = map(self._placed, self.step.parameters, self._shardings, leaves)
        results = self.jitted(*placed)
        return jax.tree.unflatten(self.step.out_tree, [results[i] for i in self._place])

    def abstract(self) -> list[jax.ShapeDtypeStruct]:
        """The leaves of the arguments."""
        return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.step.parameters]

    def shardings(self) -> tuple[Any, Any]:
        """NamedShardings of arguments and of results, as trees."""
        return (jax.tree.unflatten(self.step.in_tree, self._shardings), jax.tree.unflatten(self.step.out_tree, self._result_shardings))

    def _sharding(self, leaf: Leaf, array) -> NamedSharding:
        """array: as the program takes it. What a micro-batch's devices hold is no part of the batch that JAX has a sharding for: each
        gets all examples. Of random keys the plan splits the data, which have dimensions of their own behind."""
        is_cut = tuple(array.shape) != leaf.host_shape
        return NamedSharding(self._mesh, _spec([[], *array.axes[2:]] if is_cut else array.axes[:len(leaf.shape)]))

    def _local_results(self) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct(NamedSharding(self._mesh, _spec(array.axes)).shard_shape(tuple(array.shape)), leaf.host_dtype)
                for leaf, array in zip(self.step.results, self.executable.results)]

    def _of_leaves(self, leaves):
        for leaf, value in zip(self.step.parameters, leaves):
            check_type(leaf, value)
        data = [(jax.random.key_data(value) if leaf.is_key else value).reshape(array.shape)
                for leaf, value, array in zip(self.step.parameters, leaves, self.executable.parameters)]
        run = jax.shard_map(lambda *local: tuple(_program_primitive().bind(*local, program=self._program)), mesh=self._mesh,
                            in_specs=tuple(_spec(array.axes) for array in self.executable.parameters),
                            out_specs=tuple(_spec(array.axes) for array in self.executable.results), check_vma=False)
        results = run(*data)
        return [_of_data(self.step.results[i], results[i].reshape(self.step.results[i].host_shape)) for i in self._order]

    @staticmethod
    def _placed(leaf: Leaf, sharding: NamedSharding, value: Any):
        """The value where the plan wants it, of no weak type: JAX compiles again for what is elsewhere or weak."""
        if isinstance(value, jax.core.Tracer):
            raise failed_precondition("a function of minka.jit is called inside of another one that JAX traces: it has options for the "
                                      "compiler, which jax.jit takes at the outside only; leave out the jax.jit, grad or scan around it")
        if isinstance(value, jax.Array) and not getattr(value, "weak_type", False):  # which keys do not have
            if value.sharding == sharding:
                return value
            if leaf.role != STATE:
                check_type(leaf, value)
                return jax.device_put(value, sharding)
        # State goes through the host: the step consumes it, and between devices jax.device_put may give what shares memory with
        # the caller's own array.
        return jax.device_put(_of_data(leaf, host_value(leaf, value).reshape(leaf.host_shape)), sharding)
