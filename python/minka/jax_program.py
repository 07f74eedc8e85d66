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


def _calibration(num_devices: int, device: jax.Device) -> str:
    """What minka.init measured, if it was as many devices of the same kind."""
    if not session.is_started():
        return ""
    now = session.current()
    is_same = now.num_devices == num_devices and bool(now.gpu) == (device.platform == "gpu")
    return now.calibration if is_same else ""


def _plan(step: LoweredStep, method: OneMesh, num_devices: int, cluster: str, device: jax.Device | None):
    """device: one of those that run the plan, whose compiler's forms are taken; None: they are not there."""
    from minka import _extension
    request = _extension.ParallelizeRequest()
    fields = method.request(step) | {"hlo": step.hlo, "description": step.description, "num_devices": num_devices}
    if device is not None and device.platform == "gpu":
        fields |= {"gpu": device.device_kind, "gpu_memory_bytes": (device.memory_stats() or {}).get("bytes_limit", 0)}
    if device is not None and not cluster:
        fields["calibration"] = _calibration(num_devices, device)
    for name, value in fields.items():
        setattr(request, name, value)
    return _extension.plan_for_jax(request, cluster, device.platform if device else "")


def _device(mesh: Mesh | AbstractMesh) -> jax.Device | None:
    return None if isinstance(mesh, AbstractMesh) else mesh.devices.flat[0]


def _platform(mesh: Mesh | AbstractMesh) -> str:
    device = _device(mesh)
    return device.platform if device else ""


def _compiler_options(mesh: Mesh | AbstractMesh) -> dict:
    """What keeps XLA from planning again; none where the platform is not known yet."""
    from minka import _extension
    return _extension.compiler_options(_platform(mesh))


def _to_stablehlo(hlo: bytes) -> bytes:
    try:
        from jax.extend.mlir import hlo_to_stablehlo
    except ImportError:  # JAX before 0.8 has it for its own use only.
        from jaxlib._jax.mlir import hlo_to_stablehlo
    return hlo_to_stablehlo(hlo)


@functools.cache
def _program_primitive():
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.extend.mlir.dialects import func
    from jax.interpreters import mlir

    primitive = Primitive("minka_program")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *_, program: [ShapedArray(*result) for result in program.local_results])

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


class _Array:
    """An array as the program takes or gives it, all of it. split: extension.SplitArray of the leaf."""

    def __init__(self, mesh: Mesh | AbstractMesh, leaf: Leaf, split):
        self.leaf = leaf
        self.shape = tuple(split.shape)
        self.spec = _spec(split.axes)
        # What the devices hold of micro-batches is no part of the batch that JAX has a sharding for: each gets all examples. Of
        # random keys the data are split, which have dimensions of their own behind.
        is_cut = self.shape != leaf.host_shape
        self.sharding = NamedSharding(mesh, _spec([[], *split.axes[2:]] if is_cut else split.axes[:len(leaf.shape)]))

    def local_shape(self) -> tuple[int, ...]:
        return NamedSharding(self.sharding.mesh, self.spec).shard_shape(self.shape)


class _Program:
    """What JAX traces: holds nothing of the extension's, as JAX's caches keep it until the process ends."""

    def __init__(self, name: str, mesh: Mesh | AbstractMesh, step: LoweredStep, planned):
        self.name = name
        self.stablehlo = _to_stablehlo(planned.hlo)
        self.parameters = [_Array(mesh, leaf, split) for leaf, split in zip(step.parameters, planned.parameters)]
        self.results = [_Array(mesh, leaf, split) for leaf, split in zip(step.results, planned.results)]
        self.local_results = [(array.local_shape(), array.leaf.host_dtype) for array in self.results]
        self._mesh = mesh
        # State first and in the order of the parameters: JAX pairs what is donated with the first result of its shape.
        state = [leaf.state_result for leaf in step.parameters if leaf.role == STATE]
        self.order = state + sorted(set(range(len(step.results))) - set(state))

    def __repr__(self) -> str:
        return self.name

    def jitted(self):
        """jax.jit of it: from leaves to results in `order`."""

        def of_leaves(*leaves):
            return self._trace(leaves)

        of_leaves.__name__ = self.name
        return jax.jit(of_leaves, in_shardings=tuple(array.sharding for array in self.parameters),
                       out_shardings=[self.results[i].sharding for i in self.order],
                       donate_argnums=[i for i, array in enumerate(self.parameters) if array.leaf.role == STATE],
                       compiler_options=_compiler_options(self._mesh) or None)

    def _trace(self, leaves) -> list:
        for array, value in zip(self.parameters, leaves):
            check_type(array.leaf, value)
        data = [(jax.random.key_data(value) if array.leaf.is_key else value).reshape(array.shape)
                for array, value in zip(self.parameters, leaves)]
        run = jax.shard_map(lambda *local: tuple(_program_primitive().bind(*local, program=self)), mesh=self._mesh,
                            in_specs=tuple(array.spec for array in self.parameters),
                            out_specs=tuple(array.spec for array in self.results), check_vma=False)
        results = run(*data)
        return [_of_data(self.results[i].leaf, results[i].reshape(self.results[i].leaf.host_shape)) for i in self.order]


def _placed(array: _Array, value: Any):
    """The value where the plan wants it, of no weak type: JAX compiles again for what is elsewhere or weak."""
    leaf = array.leaf
    if isinstance(value, jax.core.Tracer):
        raise failed_precondition("a function of minka.jit is called inside of another one that JAX traces: it has options for the "
                                  "compiler, which jax.jit takes at the outside only; leave out the jax.jit, grad or scan around it")
    if isinstance(value, jax.Array) and not getattr(value, "weak_type", False):  # which keys do not have
        if value.is_deleted():
            raise failed_precondition(f"{leaf.name} was consumed by an earlier step; use what that returned")
        if value.sharding == array.sharding:
            return value
        if leaf.role != STATE:
            check_type(leaf, value)
            return jax.device_put(value, array.sharding)
    # State goes through the host: the step consumes it, and between devices jax.device_put may give what shares memory with the
    # caller's own array.
    return jax.device_put(_of_data(leaf, host_value(leaf, value).reshape(leaf.host_shape)), array.sharding)


class JaxProgram:
    """A step that minka planned and JAX runs. jitted: jax.jit of a function from leaves to leaves."""

    def __init__(self, name: str, step: LoweredStep, method: Method, mesh: Mesh | AbstractMesh | None, cluster: str):
        """Plans, which may take minutes. Raises Error where method, mesh and step do not go together."""
        method = _method_on(method, mesh)
        num_devices = _num_devices(method, mesh)
        devices = _jax_devices(num_devices) if mesh is None else None
        check_divides(step, method, num_devices)
        self.step = step
        self.executable = _plan(step, method, num_devices, cluster, devices[0] if mesh is None else _device(mesh))
        self.plan = Plan(self.executable)
        if mesh is None:
            names, sizes = zip(*self.executable.mesh)
            mesh = Mesh(np.array(devices).reshape(sizes), names)
        self._mesh = mesh
        self._program = _Program(name, mesh, step, self.executable)
        self._place = [self._program.order.index(i) for i in range(len(step.results))]
        self.jitted = self._program.jitted()

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Runs a step; what is state is donated."""
        if isinstance(self._mesh, AbstractMesh):
            raise failed_precondition(f"the plan is for {_mesh_text(self._mesh)}, an AbstractMesh without devices: give minka.jit a "
                                      "jax.sharding.Mesh to run on, or use compile, trace, lower and jax_shardings")
        leaves, tree = jax.tree.flatten(tuple(arguments))
        if tree != self.step.in_tree:
            raise other_tree(self.step, arguments)
        results = self.jitted(*map(_placed, self._program.parameters, leaves))
        return jax.tree.unflatten(self.step.out_tree, [results[i] for i in self._place])

    def abstract(self) -> list[jax.ShapeDtypeStruct]:
        """The leaves of the arguments."""
        return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.step.parameters]

    def shardings(self) -> tuple[Any, Any]:
        """NamedShardings of arguments and of results, as trees."""
        return (jax.tree.unflatten(self.step.in_tree, [array.sharding for array in self._program.parameters]),
                jax.tree.unflatten(self.step.out_tree, [array.sharding for array in self._program.results]))
