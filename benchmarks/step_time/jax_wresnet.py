"""Wide-ResNet: bottleneck blocks with batch normalisation (Zagoruyko and Komodakis 2016), trained with Nesterov momentum.

Images are [batch, height, width, features], kernels [height, width, inputs, outputs]: what XLA's CPU backend convolves fastest.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_gpt

OPTIMIZER, LEARNING_RATE = "nesterov", 0.02


class Sharding(NamedTuple):
    axes: dict                  # of the mesh, name -> size
    batch: tuple = ()           # axes that split the batch
    inner: str | None = None    # axis that splits the features inside of blocks, one sum per block (Megatron's way)
    channel: str | None = None  # axis that splits the features of all convolutions
    stored: str | None = None   # axis that splits the stored parameters


SHARDINGS = {
    "data": Sharding({"data": 8}, ("data",)),
    "fsdp": Sharding({"data": 8}, ("data",), stored="data"),
    "data4_tensor2": Sharding({"data": 4, "model": 2}, ("data",), inner="model"),
    "data2_tensor4": Sharding({"data": 2, "model": 4}, ("data",), inner="model"),
    "fsdp4_tensor2": Sharding({"data": 4, "model": 2}, ("data",), inner="model", stored="data"),
    "data4_channel2": Sharding({"data": 4, "model": 2}, ("data",), channel="model"),
    "fsdp4_channel2": Sharding({"data": 4, "model": 2}, ("data",), channel="model", stored="data"),
}


def add_arguments(parser):
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image", type=int, default=16, help="height and width")
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--classes", type=int, default=16)
    parser.add_argument("--width", type=int, default=32, help="features of the first stage")
    parser.add_argument("--width-factor", type=int, default=2)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 1, 1], help="of each stage")
    parser.add_argument("--small-images", action="store_true", help="a stem of 3x3 without strides and pooling")


class Block(NamedTuple):
    inputs: int
    features: int
    inner: int
    stride: int


def blocks_of(args):
    blocks, inputs = {}, args.width
    for stage, count in enumerate(args.blocks):
        features = args.width << stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            blocks[f"stage_{stage}_block_{i}"] = Block(inputs, features, features * args.width_factor, stride)
            inputs = 4 * features
    return blocks, inputs


def has_projection(block):
    return block.inputs != 4 * block.features or block.stride != 1


def convolution_shapes(args):
    """Kernel sizes and features of every convolution; a normalisation follows each."""
    stem = 3 if args.small_images else 7
    blocks, outputs = blocks_of(args)
    shapes = {"stem": {"stem": (stem, stem, args.channels, args.width)}}
    for name, block in blocks.items():
        shapes[name] = {"reduce": (1, 1, block.inputs, block.features),
                        "middle": (3, 3, block.features, block.inner),
                        "expand": (1, 1, block.inner, 4 * block.features)}
        if has_projection(block):
            shapes[name]["projection"] = (1, 1, block.inputs, 4 * block.features)
    return shapes, outputs


def of_convolutions(args, make):
    shapes, _ = convolution_shapes(args)
    return {block: {name: make(shape) for name, shape in layers.items()} for block, layers in shapes.items()}


def parameter_shapes(args):
    shapes = of_convolutions(args, lambda s: {"kernel": s, "scale": s[-1:], "bias": s[-1:]})
    _, outputs = convolution_shapes(args)
    return shapes | {"head": {"kernel": (outputs, args.classes), "bias": (args.classes,)}}


def statistics_shapes(args):
    return of_convolutions(args, lambda s: {"mean": s[-1:], "variance": s[-1:]})


def kernel_deviation(shape):
    return math.sqrt(2 / math.prod(shape[:-1]))


def parameter_spec(path, shape, sharding):
    spec = [None] * len(shape)
    layer = path[-2]
    if sharding.channel and layer not in ("stem", "head"):
        spec[-1] = sharding.channel
    if sharding.inner and layer == "middle":
        spec[-1] = sharding.inner
    if sharding.inner and layer == "expand" and path[-1] == "kernel":
        spec[2] = sharding.inner
    return jax_gpt.stored_split(spec, shape, sharding)


def batch_of(args, random):
    images = random.standard_normal((args.batch, args.image, args.image, args.channels), dtype=np.float32)
    return images, random.integers(0, args.classes, (args.batch,), dtype=np.int32)


def normalized(x, p, averages, stride=1):
    """Convolution and batch normalisation; also the new averages."""
    y = jax.lax.conv_general_dilated(x, p["kernel"], (stride, stride), "SAME",
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
    mean = jnp.mean(y, axis=(0, 1, 2))
    variance = jnp.maximum(jnp.mean(jnp.square(y), axis=(0, 1, 2)) - jnp.square(mean), 0.0)
    averages = {"mean": 0.9 * averages["mean"] + 0.1 * mean, "variance": 0.9 * averages["variance"] + 0.1 * variance}
    return (y - mean) * (jax.lax.rsqrt(variance + 1e-5) * p["scale"]) + p["bias"], averages


def bottleneck(x, p, averages, block, sharding, place):
    outer = P(sharding.batch, None, None, sharding.channel)
    inner = P(sharding.batch, None, None, sharding.channel or sharding.inner)
    new = {}
    y, new["reduce"] = normalized(x, p["reduce"], averages["reduce"])
    y, new["middle"] = normalized(place(jax.nn.relu(y), outer), p["middle"], averages["middle"], block.stride)
    y, new["expand"] = normalized(place(jax.nn.relu(y), inner), p["expand"], averages["expand"])
    if has_projection(block):
        x, new["projection"] = normalized(x, p["projection"], averages["projection"], block.stride)
    return place(jax.nn.relu(x + y), outer), new


def loss_of(params, statistics, batch, key, args, sharding, place):
    x, labels = batch
    new = {"stem": {}}
    x, new["stem"]["stem"] = normalized(x, params["stem"]["stem"], statistics["stem"]["stem"],
                                        1 if args.small_images else 2)
    x = jax.nn.relu(x)
    if not args.small_images:
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for name, block in blocks_of(args)[0].items():
        x, new[name] = bottleneck(x, params[name], statistics[name], block, sharding, place)
    logits = place(jnp.mean(x, axis=(1, 2)), P(sharding.batch)) @ params["head"]["kernel"] + params["head"]["bias"]
    log_probabilities = jax.nn.log_softmax(logits)
    loss = -jnp.mean(jnp.sum(jax.nn.one_hot(labels, args.classes) * log_probabilities, axis=-1))
    return loss, (new, {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == labels)})
