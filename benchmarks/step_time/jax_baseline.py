"""The training steps of the step-time benchmark, written in JAX with shardings chosen by hand.

All in f32 on eight virtual CPU devices. jax_MODEL.py holds the model and its shardings, this file what they have in common. "flax NAME" is
a step of ../prediction/make_modules.py instead, with its inputs from a file and simple shardings (jax_flax.py).
One run:

    python jax_baseline.py gpt --hidden 256 --layers 2 --steps 20     # a table of all shardings as JSON

Driven by another process, which alternates with it so that both see the same machine (one request and one answer per line):

    python jax_baseline.py gpt --hidden 256 --layers 2 --serve
    < {"ready": true, "num_parameters": 1743872, "shardings": ["data", ...], ...}
    > run data 5
    < {"sharding": "data", "step_seconds": [0.41, ...], "first_loss": 5.6, "loss": 5.5}
    > quit

The first run of a sharding compiles it and makes two steps that are not counted. A step's time goes from the call until all devices are done;
the batch lies on the devices before.

jaxlib runs collectives in a pool of as many threads as cores or devices, or as NPROC says when it is loaded; with fewer threads than
collectives in flight on all devices together it waits for itself until it aborts. More threads make steps slower.
"""

import argparse
import functools
import json
import os
import statistics
import sys
import time

# With donated arguments, all-reduces that jaxlib 0.8.1 has combined give results that vary from run to run. The flax steps keep them: users
# who say nothing get them, and they are faster.
if sys.argv[1:2] != ["flax"]:
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_disable_hlo_passes=cpu-all-reduce-combiner"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

import jax_flax  # noqa: E402
import jax_gpt  # noqa: E402
import jax_moe  # noqa: E402
import jax_wresnet  # noqa: E402

MODELS = {"gpt": jax_gpt, "moe": jax_moe, "wresnet": jax_wresnet}


def names_of(path):
    return [entry.key for entry in path]


def init(shapes, deviation_of):
    """Ones for scales and variances, zeros for biases and means, else normal."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(jax.random.PRNGKey(0), max(len(leaves), 1))

    def tensor(name, shape, key):
        if name in ("scale", "variance"):
            return jnp.ones(shape)
        return jnp.zeros(shape) if name in ("bias", "mean") else deviation_of(shape) * jax.random.normal(key, shape)

    return jax.tree.unflatten(tree, [tensor(names_of(p)[-1], s, k) for (p, s), k in zip(leaves, keys)])


class AdamW:
    """Loshchilov & Hutter 2019; weight decay on tensors of rank above 1."""
    num_slots = 2

    @staticmethod
    def update(params, gradients, slots, count, rate):
        beta1, beta2, epsilon, decay = 0.9, 0.999, 1e-8, 0.01
        mu, nu = slots
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, mu, gradients)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, nu, gradients)
        steps = count.astype(jnp.float32)
        correct1, correct2 = 1 - beta1 ** steps, 1 - beta2 ** steps

        def moved(p, m, v):
            change = m / correct1 / (jnp.sqrt(v / correct2) + epsilon)
            return p - rate * (change + (decay * p if p.ndim > 1 else 0.0))

        return jax.tree.map(moved, params, mu, nu), (mu, nu)


class Nesterov:
    """Sutskever et al. 2013."""
    num_slots = 1

    @staticmethod
    def update(params, gradients, slots, count, rate):
        momentum = 0.9
        trace = jax.tree.map(lambda t, g: momentum * t + g, slots[0], gradients)
        moved = jax.tree.map(lambda p, t, g: p - rate * (g + momentum * t), params, trace, gradients)
        return moved, (trace,)


OPTIMIZERS = {"adamw": AdamW, "nesterov": Nesterov}


def make_step(model, sharding_name, args):
    """A function that makes one step and returns what has to be waited for, and the loss."""
    sharding = model.SHARDINGS[sharding_name]
    optimizer = OPTIMIZERS[model.OPTIMIZER]
    devices = np.array(jax.devices()[:8]).reshape(tuple(sharding.axes.values()))
    mesh = Mesh(devices, tuple(sharding.axes))
    on_mesh = lambda spec: NamedSharding(mesh, spec)
    place = lambda x, spec: jax.lax.with_sharding_constraint(x, on_mesh(spec))
    params = init(model.parameter_shapes(args), model.kernel_deviation)
    averages = init(model.statistics_shapes(args), model.kernel_deviation)
    param_shardings = jax.tree_util.tree_map_with_path(
        lambda path, x: on_mesh(model.parameter_spec(names_of(path), x.shape, sharding)), params)

    def step(state, batch, key):
        params, slots, count, averages = state
        key, step_key = jax.random.split(key)
        (loss, (averages, metrics)), gradients = jax.value_and_grad(model.loss_of, has_aux=True)(
            params, averages, batch, step_key, args, sharding, place)
        params, slots = optimizer.update(params, gradients, slots, count + 1, model.LEARNING_RATE)
        return (params, slots, count + 1, averages), key, loss, metrics

    state_shardings = (param_shardings, (param_shardings,) * optimizer.num_slots, on_mesh(P()), on_mesh(P()))
    batch_sharding = on_mesh(P(sharding.batch))
    jitted = jax.jit(step, donate_argnums=(0, 2), in_shardings=(state_shardings, batch_sharding, on_mesh(P())),
                     out_shardings=(state_shardings, on_mesh(P()), on_mesh(P()), on_mesh(P())))
    slots = tuple(jax.tree.map(jnp.zeros_like, params) for _ in range(optimizer.num_slots))
    state = jax.device_put((params, slots, jnp.zeros((), jnp.int32), averages), state_shardings)
    key = jax.device_put(jax.random.PRNGKey(1), on_mesh(P()))
    batch = jax.device_put(model.batch_of(args, np.random.default_rng(0)), batch_sharding)
    jax.block_until_ready((state, batch, key))

    def run():
        nonlocal state, key
        state, key, loss, _ = jitted(state, batch, key)
        return state, loss

    return run


def num_parameters(model, args):
    shapes = jax.eval_shape(lambda: init(model.parameter_shapes(args), model.kernel_deviation))
    return sum(x.size for x in jax.tree.leaves(shapes))


class Runner:
    """One sharding: its compiled step and its state on the devices."""

    def __init__(self, step):
        self.step = step
        self.loss = None
        self.run_once()
        self.first_loss = float(self.loss)
        self.run_once()

    def run_once(self):
        start = time.perf_counter()
        state, self.loss = self.step()
        jax.block_until_ready((state, self.loss))
        return time.perf_counter() - start


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of_model = parser.add_subparsers(dest="model", required=True)
    for name, model in (MODELS | {"flax": jax_flax}).items():
        arguments = of_model.add_parser(name, description=model.__doc__)
        model.add_arguments(arguments)
        arguments.add_argument("--steps", type=int, default=20, help="steps per sharding without --serve (default 20)")
        arguments.add_argument("--sharding", nargs="+", help="only these (default all)")
        arguments.add_argument("--serve", action="store_true", help="answer requests on standard input")
    return parser.parse_args()


def main():
    args = parse_args()
    model, make = jax_flax, jax_flax.make_step
    if args.model != "flax":
        model, make = MODELS[args.model], functools.partial(make_step, MODELS[args.model])
    shardings = args.sharding or list(model.SHARDINGS)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    count = jax_flax.num_parameters(args) if model is jax_flax else num_parameters(model, args)
    about = {"num_parameters": count, "shardings": shardings, "jax": jax.__version__} | vars(args)
    runner_of = functools.cache(lambda sharding: Runner(make(sharding, args)))

    def run(sharding, steps):
        runner = runner_of(sharding)
        seconds = [runner.run_once() for _ in range(steps)]
        return {"sharding": sharding, "step_seconds": seconds, "first_loss": runner.first_loss, "loss": float(runner.loss)}

    if not args.serve:
        results = [run(sharding, args.steps) for sharding in shardings]
        table = {r["sharding"]: {"median_step_seconds": statistics.median(r["step_seconds"]), "loss": r["loss"]}
                 for r in results}
        print(json.dumps(about | {"results": table}, indent=1, default=str))
        return

    print(json.dumps({"ready": True} | about, default=str), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            return
        if len(words) == 3 and words[0] == "run" and words[1] in shardings and words[2].isdigit():
            answer = run(words[1], int(words[2]))
        else:
            answer = {"error": f"not understood: {line.strip()}; say 'run SHARDING STEPS' or 'quit'"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
