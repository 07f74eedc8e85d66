"""GPT with a mixture of experts in layers 0, 2, 4 ...: two of them per token by GShard's gating (Lepikhin et al. 2021)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_gpt
from jax_gpt import OPTIMIZER, LEARNING_RATE, Sharding, batch_of, kernel_deviation, statistics_shapes  # noqa: F401

AUXILIARY_WEIGHT = 0.01

# Where experts are split over an axis that also splits the batch, tokens go to them and back by all-to-alls.
SHARDINGS = {
    "data": Sharding({"data": 8}, ("data",)),
    "fsdp": Sharding({"data": 8}, ("data",), stored="data"),
    "expert": Sharding({"expert": 8}, ("expert",), expert="expert"),
    "expert_fsdp": Sharding({"expert": 8}, ("expert",), expert="expert", stored="expert"),
    "data2_expert4": Sharding({"data": 2, "expert": 4}, ("data", "expert"), expert="expert"),
    "fsdp2_expert4": Sharding({"data": 2, "expert": 4}, ("data", "expert"), expert="expert", stored="data"),
    "fsdp4_expert2": Sharding({"data": 4, "expert": 2}, ("data", "expert"), expert="expert", stored="data"),
    "expert4_tensor2": Sharding({"expert": 4, "model": 2}, ("expert",), "model", "expert", "expert"),
    "fsdp4_tensor2": Sharding({"data": 4, "model": 2}, ("data",), "model", "data"),
}


def add_arguments(parser):
    jax_gpt.add_arguments(parser)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--group", type=int, default=128, help="tokens that compete for the places of an expert")


def parameter_shapes(args):
    shapes = jax_gpt.parameter_shapes(args)
    for layer in range(0, args.layers, 2):
        of_layer = shapes[f"layer_{layer}"]
        of_layer["gate"] = {"kernel": (args.hidden, args.experts)}
        of_layer["up"] = {"experts": (args.experts, args.hidden, 4 * args.hidden)}
        of_layer["down"] = {"experts": (args.experts, 4 * args.hidden, args.hidden)}
    return shapes


def parameter_spec(path, shape, sharding):
    if path[-1] != "experts":
        return jax_gpt.parameter_spec(path, shape, sharding)
    spec = [sharding.expert, None, None]
    if sharding.model:
        spec[2 if path[-2] == "up" else 1] = sharding.model
    if sharding.stored == sharding.expert:
        return P(*spec)
    return jax_gpt.stored_split(spec, shape, sharding)


def places_of(choices, gate, taken, capacity):
    """Per token its expert if that has a place left [g, s, e], and the place [g, s, c]; `taken` places are gone."""
    before = jnp.cumsum(choices, axis=1) - choices + taken
    place = jnp.sum(before * choices, axis=2).astype(jnp.int32)
    return jnp.where(before < capacity, choices, 0.0), jax.nn.one_hot(place, capacity)


def combination_of(gates, capacity):
    """gates [g, s, e] -> [g, s, e, c]: the gate where a token goes; and the loss for uneven use of the experts."""
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), experts)
    second = jax.nn.one_hot(jnp.argmax(jnp.where(first > 0, -1.0, gates), axis=-1), experts)
    first_gate, second_gate = jnp.sum(gates * first, axis=2), jnp.sum(gates * second, axis=2)
    total = first_gate + second_gate + 1e-9
    to_first, first_place = places_of(first, first_gate, 0.0, capacity)
    to_second, second_place = places_of(second, second_gate, jnp.sum(to_first, axis=1, keepdims=True), capacity)
    combination = (jnp.einsum("gse,gsc->gsec", to_first * (first_gate / total)[..., None], first_place) +
                   jnp.einsum("gse,gsc->gsec", to_second * (second_gate / total)[..., None], second_place))
    balance = jnp.mean(jnp.mean(gates, axis=1) * jnp.mean(first, axis=1))
    return combination, balance * experts ** 2


def mixture_of_experts(x, p, args, sharding, place):
    batch, sequence, hidden = x.shape
    groups = P(sharding.batch)
    x = place(x.reshape(batch * sequence // args.group, args.group, hidden), groups)
    combination, auxiliary = combination_of(jax.nn.softmax(x @ p["gate"]["kernel"]),
                                            math.ceil(2 * args.group / args.experts))
    combination = place(combination, groups)
    dispatch = (combination > 0).astype(x.dtype)
    # Both sides of the all-to-all are named; left alone, the partitioner gathers.
    at_tokens = P(None, sharding.batch)
    at_experts = P(sharding.expert, tuple(a for a in sharding.batch if a != sharding.expert))
    sent = place(place(jnp.einsum("gsec,gsm->egcm", dispatch, x), at_tokens), at_experts)
    inner = jax.nn.relu(jnp.einsum("egcm,emh->egch", sent, p["up"]["experts"]))
    done = place(place(jnp.einsum("egch,ehm->egcm", inner, p["down"]["experts"]), at_experts), at_tokens)
    return place(jnp.einsum("gsec,egcm->gsm", combination, done), groups).reshape(batch, sequence, hidden), auxiliary


def loss_of(params, statistics, batch, key, args, sharding, place):
    auxiliary = []

    def feed_forward(x, p, layer):
        if layer % 2 == 1:
            return jax_gpt.mlp(x, p, args)
        y, loss = mixture_of_experts(x, p, args, sharding, place)
        auxiliary.append(loss)
        return y

    constrain = lambda x: place(x, P(sharding.batch))
    entropy = jax_gpt.cross_entropy(params, *batch, key, args, constrain, feed_forward)
    mean = sum(auxiliary) / len(auxiliary)
    return entropy + AUXILIARY_WEIGHT * mean, (statistics, {"cross_entropy": entropy, "auxiliary_loss": mean})
