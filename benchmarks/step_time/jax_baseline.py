"""The GPT training step of the step-time benchmark, written in JAX with shardings chosen by hand.

A causal byte-level transformer: learned positions, pre-LN blocks, GELU, AdamW, all in f32, on virtual CPU devices. One run:

    python jax_baseline.py --hidden 256 --layers 2 --steps 20         # a table of all shardings as JSON

Driven by another process, which alternates with it so that both see the same machine (one request and one answer per line):

    python jax_baseline.py --hidden 256 --layers 2 --serve
    < {"ready": true, "num_parameters": 1743872, "shardings": ["data", ...], ...}
    > run data 5
    < {"sharding": "data", "step_seconds": [0.41, ...], "loss": 5.5}
    > quit

The first run of a sharding compiles it and makes two steps that are not counted.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import time

# jaxlib runs collectives in a pool of as many threads as cores, or as this says; with fewer threads than collectives in
# flight on all devices together it waits for itself until it aborts. Read when jaxlib is loaded.
os.environ.setdefault("NPROC", "32")
# With donated arguments, all-reduces that jaxlib 0.8.1 has combined give results that vary from run to run.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_disable_hlo_passes=cpu-all-reduce-combiner"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

VOCABULARY = 256

# name -> (mesh axes, axis that splits the batch, axis that splits heads and MLP, axis that splits the stored parameters)
SHARDINGS = {
    "data": ({"data": 8}, "data", None, None),
    "fsdp": ({"data": 8}, "data", None, "data"),
    "tensor": ({"model": 8}, None, "model", None),
    "data2_tensor4": ({"data": 2, "model": 4}, "data", "model", None),
    "data4_tensor2": ({"data": 4, "model": 2}, "data", "model", None),
    "fsdp4_tensor2": ({"data": 4, "model": 2}, "data", "model", "data"),
}


def init_params(key, args):
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
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(key, len(leaves))

    def init(path, shape, leaf_key):
        name = path[-1].key
        if name == "scale":
            return jnp.ones(shape)
        return jnp.zeros(shape) if name == "bias" else 0.02 * jax.random.normal(leaf_key, shape)

    return jax.tree.unflatten(tree, [init(p, s, k) for (p, s), k in zip(leaves, keys)])


def parameter_spec(path, shape, model_axis, stored_axis):
    """Megatron's split: heads and the MLP's inner dimension over model_axis; then the first dimension that stored_axis,
    if any, divides."""
    names = [entry.key for entry in path]
    spec = [None] * len(shape)
    if model_axis:
        inner = {("query", "kernel"): 1, ("query", "bias"): 0, ("key", "kernel"): 1, ("key", "bias"): 0,
                 ("value", "kernel"): 1, ("value", "bias"): 0, ("attention_output", "kernel"): 0,
                 ("up", "kernel"): 1, ("up", "bias"): 0, ("down", "kernel"): 0,
                 ("head", "kernel"): 1}.get(tuple(names[-2:]))
        if inner is not None:
            spec[inner] = model_axis
    if stored_axis:
        for dim, size in enumerate(shape):
            if spec[dim] is None and size % 8 == 0:
                spec[dim] = stored_axis
                break
    return P(*spec)


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


def loss_of(params, tokens, labels, key, args, constrain):
    keys = iter(jax.random.split(key, 1 + 3 * args.layers))
    x = params["token_embedding"][tokens] + params["position_embedding"]
    x = constrain(dropout(x, args.dropout, next(keys)))
    for layer in range(args.layers):
        p = params[f"layer_{layer}"]
        a = attention(layer_norm(x, p["attention_norm"]), p, args.dropout, next(keys))
        x = constrain(x + dropout(a, args.dropout, next(keys)))
        h = layer_norm(x, p["mlp_norm"]) @ p["up"]["kernel"] + p["up"]["bias"]
        h = jax.nn.gelu(h, approximate=args.gelu == "tanh") @ p["down"]["kernel"] + p["down"]["bias"]
        x = constrain(x + dropout(h, args.dropout, next(keys)))
    logits = layer_norm(x, params["final_norm"]) @ params["head"]["kernel"]
    log_probabilities = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, VOCABULARY) * log_probabilities, axis=-1))


def adamw(params, gradients, mu, nu, count):
    """Loshchilov & Hutter 2019; weight decay on tensors of rank above 1."""
    rate, beta1, beta2, epsilon, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    count = count + 1
    steps = count.astype(jnp.float32)
    mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, mu, gradients)
    nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, nu, gradients)
    correct1, correct2 = 1 - beta1 ** steps, 1 - beta2 ** steps

    def update(p, m, v):
        change = m / correct1 / (jnp.sqrt(v / correct2) + epsilon)
        return p - rate * (change + (decay * p if p.ndim > 1 else 0.0))

    return jax.tree.map(update, params, mu, nu), mu, nu, count


class Runner:
    """One sharding: its compiled step and its state on the devices."""

    def __init__(self, sharding, args):
        axes, batch_axis, model_axis, stored_axis = SHARDINGS[sharding]
        devices = np.array(jax.devices()[:8]).reshape(tuple(axes.values()))
        mesh = Mesh(devices, tuple(axes))
        place = lambda spec: NamedSharding(mesh, spec)
        params = init_params(jax.random.PRNGKey(0), args)
        param_shardings = jax.tree_util.tree_map_with_path(
            lambda path, x: place(parameter_spec(path, x.shape, model_axis, stored_axis)), params)
        constrain = lambda x: jax.lax.with_sharding_constraint(x, place(P(batch_axis)))

        def step(state, tokens, labels, key):
            params, mu, nu, count = state
            key, step_key = jax.random.split(key)
            loss, gradients = jax.value_and_grad(loss_of)(params, tokens, labels, step_key, args, constrain)
            return adamw(params, gradients, mu, nu, count), key, loss

        state_shardings = (param_shardings, param_shardings, param_shardings, place(P()))
        batch_sharding = place(P(batch_axis))
        self.step = jax.jit(step, donate_argnums=(0, 3),
                            in_shardings=(state_shardings, batch_sharding, batch_sharding, place(P())),
                            out_shardings=(state_shardings, place(P()), place(P())))
        zeros = jax.tree.map(jnp.zeros_like, params)
        self.state = jax.device_put((params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32)),
                                    state_shardings)
        self.key = jax.device_put(jax.random.PRNGKey(1), place(P()))
        text = np.random.default_rng(0).integers(0, VOCABULARY, (args.batch, args.sequence + 1), dtype=np.int32)
        self.tokens = jax.device_put(text[:, :-1], batch_sharding)
        self.labels = jax.device_put(text[:, 1:], batch_sharding)
        jax.block_until_ready((self.state, self.tokens, self.labels, self.key))
        self.loss = None
        for _ in range(2):
            self.run_once()

    def run_once(self):
        start = time.perf_counter()
        self.state, self.key, self.loss = self.step(self.state, self.tokens, self.labels, self.key)
        jax.block_until_ready((self.state, self.loss))
        return time.perf_counter() - start


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8, help="divisible by 8, for the split over 8 devices (default 8)")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--gelu", choices=["tanh", "erf"], default="erf")
    parser.add_argument("--steps", type=int, default=20, help="steps per sharding without --serve (default 20)")
    parser.add_argument("--serve", action="store_true", help="answer requests on standard input")
    return parser.parse_args()


def main():
    args = parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    shapes = jax.eval_shape(lambda k: init_params(k, args), jax.random.PRNGKey(0))
    about = {"num_parameters": sum(x.size for x in jax.tree.leaves(shapes)), "shardings": list(SHARDINGS),
             "jax": jax.__version__, "hidden": args.hidden, "layers": args.layers, "heads": args.heads,
             "sequence": args.sequence, "batch": args.batch, "dropout": args.dropout}
    runner_of = functools.cache(lambda sharding: Runner(sharding, args))

    def run(sharding, steps):
        runner = runner_of(sharding)
        seconds = [runner.run_once() for _ in range(steps)]
        return {"sharding": sharding, "step_seconds": seconds, "loss": float(runner.loss)}

    if not args.serve:
        results = [run(sharding, args.steps) for sharding in SHARDINGS]
        table = {r["sharding"]: {"median_step_seconds": statistics.median(r["step_seconds"]), "loss": r["loss"]}
                 for r in results}
        print(json.dumps(about | {"results": table}, indent=1))
        return

    print(json.dumps({"ready": True} | about), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            return
        if len(words) == 3 and words[0] == "run" and words[1] in SHARDINGS and words[2].isdigit():
            answer = run(words[1], int(words[2]))
        else:
            answer = {"error": f"not understood: {line.strip()}; say 'run SHARDING STEPS' or 'quit'"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
