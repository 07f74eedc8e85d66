"""Step times of one flax step in four ways, on eight virtual CPU devices: jax.jit with the batch split and the state whole, minka.jit
with two methods, and minka.parallelize, whose program the first minka.jit runs.

    make python
    PYTHONPATH=build/release/python build/venv-jax/bin/python benchmarks/step_time/minka_jit.py transformer transformer_scanned mlp

The names are those of ../prediction/make_modules.py. The ways take turns, so that all see the same machine; a turn is three steps, each on
the state that the one before left. Prints medians and quartiles in ms, collectives by kind, and the last loss.
"""

import argparse
import os
import re
import statistics
import time
from collections import Counter

os.environ.setdefault("NPROC", "32")  # jaxlib's threads for collectives: as many as are in flight
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import minka  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import jax_flax  # noqa: E402

NUM_DEVICES, STEPS_PER_TURN = 8, 3


def value_of(leaf, random):
    if np.issubdtype(leaf.dtype, np.integer):
        return random.integers(10, size=leaf.shape, dtype=leaf.dtype) if leaf.shape else np.zeros((), leaf.dtype)
    return (0.02 * np.abs(random.normal(size=leaf.shape))).astype(leaf.dtype)


def jax_data_parallel(step):
    mesh = Mesh(np.array(jax.devices()[:NUM_DEVICES]), ("devices",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("devices"))
    return jax.jit(step, donate_argnums=0, in_shardings=(whole, split), out_shardings=whole)


def ways(step):
    return {"jax.jit, data parallel": jax_data_parallel(step),
            "minka.jit, Shard": minka.jit(step, method=minka.Shard()),
            "minka.jit, DataParallel": minka.jit(step, method=minka.DataParallel()),
            "minka.parallelize, Shard": minka.parallelize(step, method=minka.Shard())}


def collectives(step, state, batch):
    if not hasattr(step, "trace"):  # minka.parallelize
        return step.plan.json["collectives"]
    text = step.lower(state, batch).compile().as_text()
    return dict(Counter(re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)))


def measure(name, turns):
    exported, random = jax_flax.exported(name), np.random.default_rng(0)
    state, batch = jax.tree.map(lambda leaf: value_of(leaf, random), (exported.state, exported.batch))
    steps = ways(exported.step)
    states, losses = dict.fromkeys(steps, state), {}
    seconds = {way: [] for way in steps}
    for turn in range(turns + 1):
        for way, step in steps.items():
            begin = time.perf_counter()
            for _ in range(STEPS_PER_TURN):
                states[way], loss = step(states[way], batch)
            losses[way] = float(loss)
            if isinstance(loss, jax.Array):
                jax.block_until_ready(states[way])
            if turn > 0:
                seconds[way].append((time.perf_counter() - begin) / STEPS_PER_TURN)
    for way, step in steps.items():
        low, median, high = (1e3 * quartile for quartile in statistics.quantiles(seconds[way], n=4))
        print(f"{name:20} {way:25} {median:7.1f} ms ({low:.1f} to {high:.1f})  {collectives(step, state, batch)}  "
              f"loss {losses[way]:.6g}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    minka.init(num_devices=NUM_DEVICES)
    for name in args.names:
        measure(name, args.turns)


main()
