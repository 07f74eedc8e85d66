"""What a JAX user pays before and beside the steps themselves.

    make python
    PYTHONPATH=build/release/python JAX_PLATFORMS=cpu build/venv-jax/bin/python benchmarks/python/entry_benchmark.py
    ... entry_benchmark.py --filter call --update        # one of: import, planning, call, growth

import: fresh processes take turns, files are read from the system's cache. planning: a flax GPT-1.3B with adamw, eight rows of 1,024
words, for a p4d.24xlarge: what JAX takes to trace and lower it, what minka's Python takes besides, and the planner. call: a step that
adds one to small arrays of state on eight virtual devices, until the call returns, until it is done, and with calls one after the
other; beside jax.jit with the same arrays split over the devices, in turns. JAX runs programs as small as these within the call.
growth: memory of this process and of the workers over many steps. --update writes what was measured into entry_results.md.
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
CALLS_PER_TURN = 20
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
    from jit_models import Layers, TransformerLayer, step_of

    class Gpt(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(51200, 2048)(tokens) + self.param("positions", nn.initializers.normal(0.02), (1, tokens.shape[1], 2048))
            x = Layers(lambda: TransformerLayer(32, causal=True), 24, scanned=False)(x)
            return nn.Dense(51200, use_bias=False)(nn.LayerNorm()(x))

    model, optimizer = Gpt(), optax.adamw(1e-4)
    batch = {name: jax.ShapeDtypeStruct((8, 1024), jnp.int32) for name in ("x", "y")}
    params = jax.eval_shape(model.init, jax.random.key(0), batch["x"])["params"]
    return step_of(model, optimizer), {"params": params, "moments": jax.eval_shape(optimizer.init, params)}, batch


def measure_planning(rounds):
    import jax
    import minka
    step, state, batch = gpt()

    def by_jax():
        lowered = jax.jit(step, keep_unused=True).trace(state, batch).lower(lowering_platforms=("cpu",))
        lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()

    def by_minka():
        return minka.parallelize(step, method=minka.Shard()).lower(state, batch)

    seconds = {by_jax: [], by_minka: [], "plan": []}
    for turn in range(-1, max(4, rounds // 4)):
        for lower in (by_jax, by_minka) if turn % 2 else (by_minka, by_jax):
            jax.clear_caches()
            elapsed, lowered = seconds_of(lower)
            if turn >= 0:
                seconds[lower].append(elapsed)
            if lower is by_minka and turn >= 0:
                seconds["plan"].append(seconds_of(lowered.plan, CLUSTER)[0])
    jax_s, lowering_s, planning_s = (statistics.median(seconds[of]) for of in (by_jax, by_minka, "plan"))
    share = (lowering_s - jax_s) / (lowering_s + planning_s)
    return [{"what": "minka's Python in planning a GPT-1.3B, of all", "value": f"{100 * share:.1f} %",
             "beside": f"all {lowering_s + planning_s:.1f} s: until lowered {lowering_s:.2f}, by JAX alone {jax_s:.2f}; planned {planning_s:.1f}",
             "goal": "20 %", "met": share <= 0.2}]


def add_one(state):
    return {"count": state["count"] + 1, "arrays": [array + 1 for array in state["arrays"]]}, state["count"] * 1


def state_of(count):
    import numpy as np
    return {"count": np.zeros((), np.float32), "arrays": [np.zeros((8, 8), np.float32) for _ in range(count)]}


def wait_for(state, loss):
    """The last array lies with the others of the step."""
    import numpy as np
    float(loss)
    np.asarray(state["arrays"][-1])


def measure_call(rounds):
    import jax
    import minka
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(np.array(jax.devices()[:NUM_DEVICES]), ("x",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("x"))
    rows = []
    minka.init(num_devices=NUM_DEVICES, progress=False)
    for count in NUM_ARRAYS:
        state = state_of(count)
        step = minka.parallelize(add_one, method=minka.Shard())
        step.compile(state)
        placed = jax.tree.map(lambda array: jax.device_put(array, split if array.ndim else whole), state)
        steps = {"minka": step, "jax": jax.jit(add_one, donate_argnums=0)}
        states = {"minka": state, "jax": placed}
        micros = {what: {name: [] for name in steps} for what in ("returns", "done", "in a row")}
        for turn in range(rounds + 1):
            for name, function in steps.items():
                for _ in range(CALLS_PER_TURN):
                    begin = time.perf_counter()
                    states[name], loss = function(states[name])
                    returned = time.perf_counter()
                    wait_for(states[name], loss)
                    micros["returns"][name].append(1e6 * (returned - begin))
                    micros["done"][name].append(1e6 * (time.perf_counter() - begin))
                begin = time.perf_counter()
                for _ in range(CALLS_PER_TURN):
                    states[name], loss = function(states[name])
                wait_for(states[name], loss)
                micros["in a row"][name].append(1e6 * (time.perf_counter() - begin) / CALLS_PER_TURN)
            if turn == 0:  # warms up
                micros = {what: {name: [] for name in steps} for what in micros}
        for what, of in micros.items():
            medians = {name: statistics.median(times) for name, times in of.items()}
            ratio = medians["minka"] / medians["jax"]
            row = {"what": f"a call with {count} arrays of state: {what}, of `jax.jit`", "value": f"{ratio:.2f}",
                   "beside": f"{medians['minka']:.0f} and {medians['jax']:.0f} us", "goal": "", "met": True}
            rows.append(row | ({"goal": "1.2", "met": ratio <= 1.2} if what == "returns" else {}))
    minka.shutdown()
    return rows


def number_in_status(folder, key):
    """0: it has none, or the process has ended."""
    try:
        lines = (folder / "status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def resident_kilobytes():
    """(of this process, of its children)."""
    processes = [folder for folder in pathlib.Path("/proc").iterdir() if folder.name.isdecimal()]
    children = [folder for folder in processes if number_in_status(folder, "PPid:") == os.getpid()]
    return number_in_status(pathlib.Path("/proc/self"), "VmRSS:"), sum(number_in_status(folder, "VmRSS:") for folder in children)


def measure_growth(_):
    import minka
    minka.init(num_devices=2, progress=False)
    step = minka.parallelize(add_one, method=minka.Shard())
    state = state_of(10)

    def run(num_steps):
        nonlocal state
        for _ in range(num_steps):
            state, loss = step(state)
        float(loss)
        return resident_kilobytes()

    first, last = run(NUM_STEPS // 2), run(NUM_STEPS)
    minka.shutdown()
    more = sum(last) - sum(first)
    return [{"what": f"memory that {NUM_STEPS:,} steps behind the first {NUM_STEPS // 2:,} add", "value": f"{more} KiB",
             "beside": f"this process {first[0]} to {last[0]} KiB, its workers {first[1]} to {last[1]}", "goal": "1024 KiB", "met": more <= 1024}]


MEASUREMENTS = {"import": measure_import, "planning": measure_planning, "call": measure_call, "growth": measure_growth}


def page(rows_of):
    lines = ["# Cost of entry", "",
             "Made by `entry_benchmark.py --update`; times are medians. What is compared took turns; rows of one kind are of one run.", "",
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
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={NUM_DEVICES}"}
    environment.pop("NPROC", None)  # more threads than devices make steps slower
    for name in args.filter:  # each in a process of its own: what one leaves behind is not another's
        done = subprocess.run([sys.executable, __file__, "--one", name, "--rounds", str(args.rounds)], env=environment, check=True,
                              stdout=subprocess.PIPE, text=True)
        known[name] = json.loads(done.stdout.rpartition("rows: ")[2])
        for row in known[name]:
            goal = f"; goal {row['goal']}: {'met' if row['met'] else 'missed'}" if row["goal"] else ""
            print(f"{row['what']}: {row['value']} ({row['beside']}){goal}", flush=True)
    if args.update:
        known = {name: known[name] for name in MEASUREMENTS if name in known}
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(page(known))


if __name__ == "__main__":
    main()
