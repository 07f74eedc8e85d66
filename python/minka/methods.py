"""How a step is parallelised."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from minka.errors import invalid_argument

if TYPE_CHECKING:
    from minka.lowering import LoweredStep


@dataclass(frozen=True, kw_only=True)
class Method:
    """What all methods have in common.

    num_micro_batches: the step runs on so many slices of the batch, one after the other, and computes what it computes of the
        whole one.
    per_micro_batch: where an operation on slices needs a sum over the batch (batch norm), take that over its slice instead.
    narrow_sums: gradients of micro-batches add up in the type that they are computed in, be it bfloat16 or float16, instead of
        float32: two bytes less for every weight, one rounding more for every micro-batch.
    peak_memory_bytes: a limit for every device, or None.
    pins: by glob on names of parameters how they lie, e.g. {"params/*kernel": jax.sharding.PartitionSpec(None, "model")}, in which
        dimensions that are not named stay whole; or "GLOB=SHARDING", e.g. ["params/*kernel=[-,model]"]. * stands for anything,
        ? for one character. The axes are those of the mesh.
    remat: what the backward pass finds of each layer's forward pass, "none", "dots" or "all"; one entry for all layers or
        one each; empty: minka decides.
    """

    name: ClassVar[str]
    splits_batch: ClassVar[bool] = False  # over all devices

    num_micro_batches: int = 1
    per_micro_batch: bool = False
    narrow_sums: bool = False
    peak_memory_bytes: int | None = None
    pins: Mapping[str, Any] | Sequence[str] = ()
    remat: Sequence[str] = ()

    def request(self, step: "LoweredStep") -> dict:
        """Fields of the extension's ParallelizeRequest. Raises Error INVALID_ARGUMENT for pins that do not fit the step."""
        pins = _pins_of(self.pins, step) if isinstance(self.pins, Mapping) else list(self.pins)
        return {"method": self.name, "num_micro_batches": self.num_micro_batches, "per_micro_batch": self.per_micro_batch,
                "narrow_sums": self.narrow_sums,
                "peak_memory_bytes": self.peak_memory_bytes, "pins": pins, "remat": list(self.remat)}


def _pins_of(specs: Mapping[str, Any], step: "LoweredStep") -> list[str]:
    """Each parameter's own pin: a PartitionSpec may be shorter than the rank."""
    pins = {}
    for glob, spec in specs.items():
        pattern = re.compile(re.escape(glob).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
        found = [leaf for leaf in step.parameters if pattern.fullmatch(leaf.name)]
        if not found:
            raise invalid_argument(f"pins: no parameter is named {glob}; the first is {step.parameters[0].name}")
        for leaf in found:
            rank = len(leaf.shape)
            if len(spec) > rank:
                raise invalid_argument(f"pins: {spec} names {len(spec)} dimensions; {leaf.name} has {rank}")
            axes = ["-" if part is None else "+".join([part] if isinstance(part, str) else part) for part in spec]
            pins[leaf.name] = f"{leaf.name}=[{','.join(part or '-' for part in axes + ['-'] * (rank - len(axes)))}]"
    return list(pins.values())


@dataclass(frozen=True, kw_only=True)
class OneMesh(Method):
    """mesh: named axes with sizes, "data=2,model=4"; empty: minka decides."""

    mesh: str = ""

    def request(self, step: "LoweredStep") -> dict:
        return super().request(step) | {"mesh": self.mesh}


@dataclass(frozen=True, kw_only=True)
class Shard(OneMesh):
    """Every tensor is split as the search finds it fastest."""

    name: ClassVar[str] = "shard"


@dataclass(frozen=True, kw_only=True)
class DataParallel(OneMesh):
    """The batch is split over all devices, parameters are whole on each."""

    name: ClassVar[str] = "data"
    splits_batch: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Zero2(OneMesh):
    """Data parallelism in which what the optimizer alone reads is split over all devices."""

    name: ClassVar[str] = "zero2"
    splits_batch: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Zero3(OneMesh):
    """As Zero2, and weights are stored split, too, and gathered for each group of uses."""

    name: ClassVar[str] = "zero3"
    splits_batch: ClassVar[bool] = True


@dataclass(frozen=True)
class AutoLayers:
    """So many layers of about equal compute between which little is sent, marked boundaries or not."""

    num_layers: int


@dataclass(frozen=True)
class AutoStages:
    """As many stages as are predicted to be fastest, on equal or unequal parts of the devices.

    submesh_choices: each mesh has one of these numbers of devices, e.g. (1, 2); empty: powers of two and equal parts.
    """

    submesh_choices: Sequence[int] = ()

    def __post_init__(self):
        # Hashable, as a function's options have to be.
        object.__setattr__(self, "submesh_choices", tuple(self.submesh_choices))


@dataclass(frozen=True)
class UniformStages:
    """So many stages of about equal predicted time per device."""

    num_stages: int


@dataclass(frozen=True, kw_only=True)
class ManualStages:
    """stage_of_layer: never falling, from 0 on, without gaps, e.g. [0, 0, 1].
    submeshes: of each stage's mesh the number of devices, e.g. [2, 4], or its shape, e.g. ["data=2", "data=2,model=2"]; empty: equal
        parts of the devices, in the shapes that are fastest."""

    stage_of_layer: Sequence[int]
    submeshes: Sequence[int] | Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Pipeline(Method):
    """Layers as stages on meshes of their own, each in a process of its own, through which micro-batches flow.

    layers: "marked": they end where the function calls minka.mark_boundary, and without one minka finds them; AutoLayers, or how
        many; or what each but the first begins with, e.g. ["*/h_4/*", "*/h_8/*"]: globs on names of operations (JAX's name stack)
        and of parameters, or numbers of layers between boundaries.
    stages: AutoStages or "auto"; UniformStages, or how many; ManualStages, or the stage of every layer, e.g. [0, 0, 1].
    submeshes: as in ManualStages, for stages that do not say so themselves.
    schedule: "auto" takes the one of 1f1b, eager-1f1b and zero-bubble-h1 that is predicted to be fastest; or one of
        docs/guides/pipelines.md.
    """

    name: ClassVar[str] = "pipeline"

    layers: str | int | Sequence[str] | AutoLayers = "marked"
    stages: str | int | Sequence[int] | AutoStages | UniformStages | ManualStages = "auto"
    submeshes: Sequence[int] | Sequence[str] = ()
    schedule: str = "auto"

    def __post_init__(self):
        if isinstance(self.layers, str) and self.layers != "marked":
            raise invalid_argument(f'minka.Pipeline: layers is "{self.layers}"; take "marked", minka.AutoLayers(n) or a list of what '
                                   f'they begin with, such as ["{self.layers}"]')
        if isinstance(self.stages, str) and self.stages != "auto":
            raise invalid_argument(f'minka.Pipeline: stages is "{self.stages}"; take "auto", minka.UniformStages(n) or '
                                   "minka.ManualStages(stage_of_layer=...)")
        for what, count in (("layers", self._num_layers()), ("stages", self._num_stages())):
            if count is not None and count < 1:
                raise invalid_argument(f"minka.Pipeline: {count} {what} are asked for; at least 1 is needed")
        if isinstance(self.stages, ManualStages) and self.stages.submeshes and self.submeshes:
            raise invalid_argument("minka.Pipeline: submeshes are named by minka.ManualStages, too; name them once")
        if self._submesh_choices() and self.submeshes:
            raise invalid_argument("minka.Pipeline: submeshes say what meshes there are, and minka.AutoStages of what to choose them; take one")

    def _num_layers(self) -> int | None:
        layers = self.layers.num_layers if isinstance(self.layers, AutoLayers) else self.layers
        return layers if isinstance(layers, int) else None

    def _layer_starts(self) -> list[str]:
        listed = not isinstance(self.layers, (str, int, AutoLayers))
        return [str(start) for start in self.layers] if listed else []

    def _submesh_choices(self) -> list[int]:
        return list(self.stages.submesh_choices) if isinstance(self.stages, AutoStages) else []

    def _num_stages(self) -> int | None:
        stages = self.stages.num_stages if isinstance(self.stages, UniformStages) else self.stages
        return stages if isinstance(stages, int) else None

    def request(self, step: "LoweredStep") -> dict:
        manual = self.stages if isinstance(self.stages, ManualStages) else None
        stage_of_layer = manual.stage_of_layer if manual else () if isinstance(
            self.stages, (str, int, AutoStages, UniformStages)) else self.stages
        submeshes = list(manual.submeshes if manual and manual.submeshes else self.submeshes)
        meshes = [mesh for mesh in submeshes if isinstance(mesh, str)]
        if meshes and len(meshes) < len(submeshes):
            raise invalid_argument("minka.Pipeline: submeshes are numbers of devices or shapes, all of one kind")
        return super().request(step) | {"num_layers": self._num_layers() or 0, "layer_starts": self._layer_starts(),
                                        "num_stages": self._num_stages() or 0, "stage_of_layer": list(stage_of_layer),
                                        "submeshes": [] if meshes else submeshes, "meshes": meshes,
                                        "submesh_choices": self._submesh_choices(), "schedule": self.schedule}


@dataclass(frozen=True, kw_only=True)
class SavedPlan(Method):
    """The plan of a file, which says everything; see minka.parallelize."""

    name: ClassVar[str] = "shard"

    path: str = ""

    def request(self, step: "LoweredStep") -> dict:
        return super().request(step) | {"plan_path": self.path}
