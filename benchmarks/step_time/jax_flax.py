"""A step of ../prediction/make_modules.py, the function that minka gets as a module, under plain jax.jit: the shardings say how the
state lies (batch split over all devices), XLA does the rest."""

import functools
import importlib.util
import json
import pathlib

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

# data: the state whole on every device. fsdp: each leaf split along its largest dimension that the devices divide.
SHARDINGS = ["data", "fsdp"]
AXIS = "devices"


def add_arguments(parser):
    parser.add_argument("name", help="as make_modules.py calls it")
    parser.add_argument("--inputs", type=pathlib.Path, required=True,
                        help="safetensors file: the leaves of state, batch and key, named by their number")


@functools.cache
def exported(name):
    path = pathlib.Path(__file__).resolve().parents[1] / "prediction" / "make_modules.py"
    spec = importlib.util.spec_from_file_location("prediction_modules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.modules()[name]()


def num_parameters(args):
    return sum(leaf.size for leaf in jax.tree.leaves(exported(args.name).state["params"]))


def read_inputs(path, shapes):
    """https://huggingface.co/docs/safetensors; types and shapes must be those of `shapes`."""
    contents = path.read_bytes()
    start = 8 + int.from_bytes(contents[:8], "little")
    header = json.loads(contents[8:start])

    def read(number, leaf):
        first, last = header[str(number)]["data_offsets"]
        return np.frombuffer(contents[start + first:start + last], leaf.dtype).reshape(leaf.shape)

    leaves, tree = jax.tree.flatten(shapes)
    return jax.tree.unflatten(tree, [read(number, leaf) for number, leaf in enumerate(leaves)])


def leaf_spec(shape, sharding_name, num_devices):
    dims = [dim for dim, size in enumerate(shape) if size % num_devices == 0]
    if sharding_name == "data" or not dims:
        return P()
    return P(*[None] * max(dims, key=lambda dim: shape[dim]), AXIS)


def make_step(sharding_name, args):
    """A function that makes one step and returns what has to be waited for, and the loss."""
    flax = exported(args.name)
    devices = jax.devices()[:8]
    on_mesh = functools.partial(NamedSharding, Mesh(np.array(devices), (AXIS,)))
    state_shardings = jax.tree.map(lambda leaf: on_mesh(leaf_spec(leaf.shape, sharding_name, len(devices))), flax.state)
    keys = () if flax.key is None else (flax.key,)
    shardings = (state_shardings, on_mesh(P(AXIS)), *(on_mesh(P()) for _ in keys))
    step = jax.jit(flax.step, donate_argnums=(0,), in_shardings=shardings, out_shardings=(state_shardings, on_mesh(P())))
    inputs = read_inputs(args.inputs, (flax.state, flax.batch, *keys))
    # device_put takes a whole tree's sharding for the batch.
    state, *others = [jax.device_put(value, where) for value, where in zip(inputs, shardings)]
    jax.block_until_ready((state, others))

    def run():
        nonlocal state
        state, loss = step(state, *others)
        return state, loss

    return run
