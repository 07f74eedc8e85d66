"""What a JAX user pays before and beside the steps themselves.

    make python
    PYTHONPATH=build/release/python JAX_PLATFORMS=cpu build/venv-jax/bin/python benchmarks/python/entry_benchmark.py
    ... entry_benchmark.py --filter call --update        # one of: import, planning, call, growth

import: fresh processes take turns, files are read from the system's cache. planning: a flax GPT-1.3B with adamw, eight rows of 1,024
words, for a p4d.24xlarge: what JAX takes to trace and lower it, what minka's Python takes besides, and the planner. call: a step that
adds one to small arrays of state on eight virtual devices, until the call returns and until it is done, beside jax.jit with the same
arrays and shardings, in turns. growth: memory of this process and of the workers over many steps. --update writes what was measured
into entry_results.md.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

NUM_DEVICES = 8
IMPORTS = {"no import": "", "import numpy": "import numpy", "import minka": "import minka"}
NUM_ARRAYS = (10, 100, 300)
NUM_STEPS = 10_000
CLUSTER = "p4d.24xlarge"
RESULTS = pathlib.Path(__file__).with_name("entry_results.json")


def seconds_of(function, *args):
    begin = time.perf_counter()
    result = function(*args)
    return time.perf_counter() - begin, result


def measure_import(rounds):
    def start(program):
        subprocess.run([sys.executable, "-c", program], check=True)

    for program in IMPORTS.values():
        start(program)  # fills the system's cache
    seconds = {name: [] for name in IMPORTS}
    for _ in range(rounds):
        for name, program in IMPORTS.items():
            seconds[name].append(seconds_of(start, program)[0])
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    more = medians["import minka"] - medians["no import"]
    return [{"what": "`import minka`, more than no import", "value": f"{more:.3f} s",
             "beside": f"numpy alone {medians['import numpy'] - medians['no import']:.3f} s", "goal": "0.3 s", "met": more <= 0.3}]


def gpt():
    """(step, abstract state, abstract batch) of a GPT-1.3B: 24 layers, 2,048 wide, 51,200 words."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    from jit_models import Layers, TransformerLayer

    class Gpt(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(51200, 2048)(tokens) + self.param("positions", nn.initializers.normal(0.02), (1, tokens.shape[1], 2048))
            x = Layers(lambda: TransformerLayer(32, causal=True), 24, scanned=False)(x)
            return nn.Dense(51200, use_bias=False)(nn.LayerNorm()(x))

    model, optimizer = Gpt(), optax.adamw(1e-4)
    batch = {name: jax.ShapeDtypeStruct((8, 1024), jnp.int32) for name in ("x", "y")}
    params = jax.eval_shape(model.init, jax.random.key(0), batch["x"])["params"]

    def step(state, batch):
        def loss_of(params):
            logits = model.apply({"params": params}, batch["x"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, moments = optimizer.update(gradients, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, loss

    return step, {"params": params, "moments": jax.eval_shape(optimizer.init, params)}, batch


def measure_planning(rounds):
    import jax
    import minka
    step, state, batch = gpt()
    jax_seconds, lower_seconds, plan_seconds = [], [], []
    for _ in range(max(3, rounds // 5)):
        jax.clear_caches()
        seconds, lowered = seconds_of(lambda: jax.jit(step, keep_unused=True).trace(state, batch).lower(lowering_platforms=("cpu",)))
        more, _ = seconds_of(lambda: lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
        jax_seconds.append(seconds + more)
        jax.clear_caches()
        seconds, planned = seconds_of(minka.parallelize(step, method=minka.Shard()).lower, state, batch)
        lower_seconds.append(seconds)
        plan_seconds.append(seconds_of(planned.plan, CLUSTER)[0])
    by_jax, lowering, planning = (statistics.median(times) for times in (jax_seconds, lower_seconds, plan_seconds))
    own = max(0.0, lowering - by_jax)
    share = own / (lowering + planning)
    return [{"what": "minka's Python in planning a GPT-1.3B, of all", "value": f"{100 * share:.1f} %",
             "beside": f"all {lowering + planning:.1f} s: JAX traces and lowers {by_jax:.1f}, minka's Python {own:.2f}, planner {planning:.1f}",
             "goal": "20 %", "met": share <= 0.2}]


def add_one(state):
    return [array + 1 for array in state], state[0][0, 0]


def measure_call(rounds):
    import jax
    import minka
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(np.array(jax.devices()[:NUM_DEVICES]), ("x",))
    rows = []
    minka.init(num_devices=NUM_DEVICES, progress=False)
    for count in NUM_ARRAYS:
        state = [np.zeros((8, 8), np.float32) for _ in range(count)]
        step = minka.parallelize(add_one, method=minka.Shard())
        step.compile(state)
        split = NamedSharding(mesh, PartitionSpec("x"))
        plain = jax.jit(add_one, donate_argnums=0)
        states = {"minka": state, "jax": [jax.device_put(array, split) for array in state]}
        launched, done = ({"minka": [], "jax": []} for _ in range(2))
        for turn in range(rounds + 1):
            for name, function in (("minka", step), ("jax", plain)):
                for _ in range(20):
                    begin = time.perf_counter()
                    states[name], loss = function(states[name])
                    returned = time.perf_counter()
                    float(loss)
                    if turn > 0:
                        launched[name].append(1e6 * (returned - begin))
                        done[name].append(1e6 * (time.perf_counter() - begin))
        here, there = ({name: statistics.median(times) for name, times in of.items()} for of in (launched, done))
        ratio = here["minka"] / here["jax"]
        rows.append({"what": f"a call with {count} arrays of state returns after, of `jax.jit`", "value": f"{ratio:.2f}",
                     "beside": f"{here['minka']:.0f} and {here['jax']:.0f} us; done after {there['minka']:.0f} and {there['jax']:.0f} us",
                     "goal": "1.2", "met": ratio <= 1.2})
    minka.shutdown()
    return rows


def number_in_status(folder, key):
    return next((int(line.split()[1]) for line in (folder / "status").read_text().splitlines() if line.startswith(key)), 0)


def resident_kilobytes():
    """(of this process, of its children)."""
    processes = [folder for folder in pathlib.Path("/proc").iterdir() if folder.name.isdecimal()]
    children = [folder for folder in processes if folder.exists() and number_in_status(folder, "PPid:") == os.getpid()]
    return number_in_status(pathlib.Path("/proc/self"), "VmRSS:"), sum(number_in_status(folder, "VmRSS:") for folder in children)


def measure_growth(_):
    import minka
    import numpy as np
    minka.init(num_devices=2, progress=False)
    step = minka.parallelize(add_one, method=minka.Shard())
    state = [np.zeros((64, 64), np.float32) for _ in range(10)]

    def run(num_steps):
        nonlocal state
        for _ in range(num_steps):
            state, loss = step(state)
        float(loss)
        return resident_kilobytes()

    first, last = run(NUM_STEPS // 10), run(NUM_STEPS)
    minka.shutdown()
    more = max(after - before for before, after in zip(first, last))
    return [{"what": f"memory that {NUM_STEPS:,} steps behind the first {NUM_STEPS // 10:,} add", "value": f"{more} KiB",
             "beside": f"this process {first[0]} to {last[0]} KiB, its workers {first[1]} to {last[1]}", "goal": "1024 KiB", "met": more <= 1024}]


MEASUREMENTS = {"import": measure_import, "planning": measure_planning, "call": measure_call, "growth": measure_growth}


def page(rows_of):
    lines = ["# Cost of entry", "", "Made by `entry_benchmark.py --update`; medians of one run. What is compared with JAX took turns with it.", "",
             "| | measured | beside | goal, at most |", "|---|---|---|---|"]
    for rows in rows_of.values():
        lines += [f"| {row['what']} | {row['value']} | {row['beside']} | {row['goal']}{'' if row['met'] else ': missed'} |" for row in rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", nargs="+", default=list(MEASUREMENTS), choices=list(MEASUREMENTS))
    parser.add_argument("--rounds", type=int, default=15, help="turns that are measured (default: 15)")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--one", choices=list(MEASUREMENTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print("rows: " + json.dumps(MEASUREMENTS[args.one](args.rounds)))
        return
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    environment = os.environ | {"NPROC": str(NUM_DEVICES), "XLA_FLAGS": f"--xla_force_host_platform_device_count={NUM_DEVICES}"}
    for name in args.filter:  # each in a process of its own: what one leaves behind is not another's
        done = subprocess.run([sys.executable, __file__, "--one", name, "--rounds", str(args.rounds)], env=environment, check=True,
                              stdout=subprocess.PIPE, text=True)
        known[name] = json.loads(done.stdout.rpartition("rows: ")[2])
        for row in known[name]:
            print(f"{row['what']}: {row['value']} ({row['beside']}); goal {row['goal']}: {'met' if row['met'] else 'missed'}", flush=True)
    if args.update:
        known = {name: known[name] for name in MEASUREMENTS if name in known}
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(page(known))


if __name__ == "__main__":
    main()
