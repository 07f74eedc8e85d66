"""GPT: a causal byte-level transformer with learned positions, pre-LN blocks and GELU."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

VOCABULARY = 256
OPTIMIZER, LEARNING_RATE = "adamw", 1e-3


class Sharding(NamedTuple):
    axes: dict                 # of the mesh, name -> size
    batch: tuple = ()          # axes that split the batch
    model: str | None = None   # axis that splits heads and MLP
    stored: str | None = None  # axis that splits the stored parameters
    expert: str | None = None  # axis that splits experts (jax_moe.py)


SHARDINGS = {
    "data": Sharding({"data": 8}, ("data",)),
    "fsdp": Sharding({"data": 8}, ("data",), stored="data"),
    "tensor": Sharding({"model": 8}, model="model"),
    "data2_tensor4": Sharding({"data": 2, "model": 4}, ("data",), "model"),
    "data4_tensor2": Sharding({"data": 4, "model": 2}, ("data",), "model"),
    "fsdp4_tensor2": Sharding({"data": 4, "model": 2}, ("data",), "model", "data"),
}

# Megatron's split: heads and the MLP's inner dimension.
MODEL_DIMS = {("query", "kernel"): 1, ("query", "bias"): 0, ("key", "kernel"): 1, ("key", "bias"): 0,
              ("value", "kernel"): 1, ("value", "bias"): 0, ("attention_output", "kernel"): 0,
              ("up", "kernel"): 1, ("up", "bias"): 0, ("down", "kernel"): 0, ("head", "kernel"): 1}


def add_arguments(parser):
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8, help="divisible by 8, for the split over 8 devices (default 8)")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--gelu", choices=["tanh", "erf"], default="erf")


def parameter_shapes(args):
    """Nested dictionaries; kernels of the attention keep heads as a dimension of their own, so that it can be split."""
    hidden, heads, dim = args.hidden, args.heads, args.hidden // args.heads
    shapes = {"token_embedding": (VOCABULARY, hidden), "position_embedding": (args.sequence, hidden),
              "final_norm": {"scale": (hidden,), "bias": (hidden,)},
              "head": {"kernel": (hidden, VOCABULARY)}}
    for layer in range(args.layers):
        shapes[f"layer_{layer}"] = {
            "attention_norm": {"scale": (hidden,), "bias": (hidden,)},
            "query": {"kernel": (hidden, heads, dim), "bias": (heads, dim)},
            "key": {"kernel": (hidden, heads, dim), "bias": (heads, dim)},
            "value": {"kernel": (hidden, heads, dim), "bias": (heads, dim)},
            "attention_output": {"kernel": (heads, dim, hidden), "bias": (hidden,)},
            "mlp_norm": {"scale": (hidden,), "bias": (hidden,)},
            "up": {"kernel": (hidden, 4 * hidden), "bias": (4 * hidden,)},
            "down": {"kernel": (4 * hidden, hidden), "bias": (hidden,)}}
    return shapes


def statistics_shapes(args):
    return {}


def kernel_deviation(shape):
    return 0.02


def parameter_spec(path, shape, sharding):
    spec = [None] * len(shape)
    inner = MODEL_DIMS.get(tuple(path[-2:]))
    if sharding.model and inner is not None:
        spec[inner] = sharding.model
    return stored_split(spec, shape, sharding)


def stored_split(spec, shape, sharding):
    """The first dimension that is whole and that the axis for storage, if any, divides, is split over it."""
    if sharding.stored:
        for dim, size in enumerate(shape):
            if spec[dim] is None and size % sharding.axes[sharding.stored] == 0:
                spec[dim] = sharding.stored
                break
    return P(*spec)


def batch_of(args, random):
    text = random.integers(0, VOCABULARY, (args.batch, args.sequence + 1), dtype=np.int32)
    return text[:, :-1], text[:, 1:]


def dropout(x, rate, key):
    if rate == 0.0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0)


def layer_norm(x, p):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True) - jnp.square(mean)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * p["scale"] + p["bias"]


def attention(x, p, rate, key):
    query, k, value = (jnp.einsum("bsm,mhd->bshd", x, p[n]["kernel"]) + p[n]["bias"]
                       for n in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, k) / np.sqrt(query.shape[-1]).astype(np.float32)
    causal = np.tril(np.ones(scores.shape[-2:], bool))
    weights = dropout(jax.nn.softmax(jnp.where(causal, scores, -1e9)), rate, key)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return jnp.einsum("bshd,hdm->bsm", mixed, p["attention_output"]["kernel"]) + p["attention_output"]["bias"]


def mlp(x, p, args):
    h = x @ p["up"]["kernel"] + p["up"]["bias"]
    return jax.nn.gelu(h, approximate=args.gelu == "tanh") @ p["down"]["kernel"] + p["down"]["bias"]


def cross_entropy(params, tokens, labels, key, args, constrain, feed_forward):
    """feed_forward(x, parameters of its layer, number of its layer) is the second half of a layer."""
    keys = iter(jax.random.split(key, 1 + 3 * args.layers))
    x = params["token_embedding"][tokens] + params["position_embedding"]
    x = constrain(dropout(x, args.dropout, next(keys)))
    for layer in range(args.layers):
        p = params[f"layer_{layer}"]
        a = attention(layer_norm(x, p["attention_norm"]), p, args.dropout, next(keys))
        x = constrain(x + dropout(a, args.dropout, next(keys)))
        h = feed_forward(layer_norm(x, p["mlp_norm"]), p, layer)
        x = constrain(x + dropout(h, args.dropout, next(keys)))
    logits = layer_norm(x, params["final_norm"]) @ params["head"]["kernel"]
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, VOCABULARY) * log_probabilities, axis=-1))


def loss_of(params, statistics, batch, key, args, sharding, place):
    constrain = lambda x: place(x, P(sharding.batch))
    loss = cross_entropy(params, *batch, key, args, constrain, lambda x, p, layer: mlp(x, p, args))
    return loss, (statistics, {})
