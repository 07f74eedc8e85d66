"""Arrays on the devices."""

import html

import numpy as np

from minka.waiting import wait_for


class DistributedArray:
    """An array that lies on the devices as the plan says. A leaf of JAX's trees.

    numpy.asarray, float and int fetch it, jax.numpy.asarray too; it is the user's to keep until a step consumes it as state.
    shape and dtype are those that JAX knows; of random keys numpy gets the key's data.
    """

    __slots__ = ("handle", "name", "shape", "dtype", "_host")

    def __init__(self, handle, name: str, shape: tuple[int, ...], dtype, host: tuple[tuple[int, ...], np.dtype]):
        """handle: the extension's array. host: shape and type of its bytes."""
        self.handle = handle
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self._host = host

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def layout(self) -> str:
        """Type, shape, sharding and mesh, e.g. "f32[64,128] [data,-] on data=2,model=4"."""
        return self.handle.layout(self.name)

    @property
    def is_consumed(self) -> bool:
        return self.handle.is_consumed

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """Waits for the array and fetches all of it, read-only unless a copy is asked for."""
        shape, host_type = self._host
        value = wait_for(self.handle.start_to_host(self.name)).view(host_type).reshape(shape)
        return np.array(value, dtype) if copy else np.asarray(value, dtype)

    def __float__(self) -> float:
        return float(np.asarray(self).item())

    def __int__(self) -> int:
        return int(np.asarray(self).item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a scalar")
        return self.shape[0]

    def __repr__(self) -> str:
        where = "consumed by a step" if self.is_consumed else self.layout
        return f"DistributedArray({self.name}: {where})"

    def _repr_html_(self) -> str:
        """For notebooks; fetches nothing."""
        where = "<i>consumed by a step</i>" if self.is_consumed else html.escape(self.layout)
        return f"<b>{html.escape(self.name)}</b> <code>{where}</code>"
