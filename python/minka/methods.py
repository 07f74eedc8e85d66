"""How a step is parallelised."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Method:
    """What all methods have in common.

    num_micro_batches: the step runs on so many slices of the batch, one after the other, and computes what it computes of the
        whole one.
    per_micro_batch: where an operation on slices needs a sum over the batch (batch norm), take that over its slice instead.
    peak_memory_bytes: a limit for every device, or None.
    pins: "GLOB=SHARDING" on names of parameters, e.g. "params/*kernel=[-,model]".
    remat: what the backward pass finds of each layer's forward pass, "none", "dots" or "all"; one entry for all layers or
        one each; empty: minka decides.
    """

    name: ClassVar[str]
    splits_batch: ClassVar[bool] = False  # over all devices

    num_micro_batches: int = 1
    per_micro_batch: bool = False
    peak_memory_bytes: int | None = None
    pins: Sequence[str] = ()
    remat: Sequence[str] = ()

    def request(self) -> dict:
        """Fields of the extension's ParallelizeRequest."""
        return {"method": self.name, "num_micro_batches": self.num_micro_batches, "per_micro_batch": self.per_micro_batch,
                "peak_memory_bytes": self.peak_memory_bytes, "pins": list(self.pins), "remat": list(self.remat)}


@dataclass(frozen=True, kw_only=True)
class OneMesh(Method):
    """mesh: named axes with sizes, "data=2,model=4"; empty: minka decides."""

    mesh: str = ""

    def request(self) -> dict:
        return super().request() | {"mesh": self.mesh}


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


@dataclass(frozen=True, kw_only=True)
class Pipeline(Method):
    """Layers as stages on meshes of their own, each in a process of its own, through which micro-batches flow.

    Layers end where the function calls minka.mark_boundary; without one minka finds them.
    stages: "auto", how many, or the stage of every layer, e.g. [0, 0, 1].
    submeshes: the number of devices of each mesh; empty: equal parts.
    schedule: "gpipe", "1f1b" and the others of docs/guides/pipelines.md.
    """

    name: ClassVar[str] = "pipeline"

    stages: str | int | Sequence[int] = "auto"
    submeshes: Sequence[int] = ()
    schedule: str = "1f1b"

    def request(self) -> dict:
        stages = {"num_stages": 0} if self.stages == "auto" else (
            {"num_stages": self.stages} if isinstance(self.stages, int) else {"stage_of_layer": list(self.stages)})
        return super().request() | stages | {"submeshes": list(self.submeshes), "schedule": self.schedule}
