"""The zoo: models of other people's packages, three training steps by every method on eight virtual devices, compared with one device and
with plain jax.jit.

    make zoo                                     # installs the packages, runs all models
    PYTHONPATH=build/release/python build/venv-zoo/bin/python benchmarks/zoo/zoo_benchmark.py --filter 'keras*' --update

Each pair of model and method runs in a process of its own. --update writes its row into results.json and results.md; rows that were not
run stay. --times measures, besides, step times against jax.jit with the batch split and the state whole: on a machine that does nothing
else.
"""

import argparse
import fnmatch
import json
import pathlib
import statistics
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "python"))

import row_by_row  # noqa: E402

NUM_DEVICES, NUM_STEPS = 8, 3
# Losses of jax.jit, whose XLA is another version than the plugin's. Training may amplify rounding: losses may also differ by four times
# what they do where each number that jax.jit reads is moved by a rounding.
LOSS_TOLERANCE, NUDGES = 2e-3, 3
METHODS = ("DataParallel", "Zero2", "Zero3", "Shard", "Pipeline")
MODULES = ("flax_models", "keras_models", "hub_models")
# JAX keeps memory between steps, as minka's executables do (benchmarks/python/jit_benchmark.py).
KEPT_MEMORY = {"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
# What XLA:CPU writes quickly: results, not times.
FAST_CODE = ("--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
             "--xla_cpu_parallel_codegen_split_count=1")


def models():
    """By name; of packages that are installed."""
    import importlib
    found = {}
    for name in MODULES:
        try:
            found |= importlib.import_module(name).MODELS
        except ModuleNotFoundError as error:
            print(f"{name}: {error}; see requirements.txt here", file=sys.stderr)
    return found


def method_of(name, per_micro_batch):
    import minka
    if name == "Pipeline":
        return minka.Pipeline(num_micro_batches=2, stages=2, layers=minka.AutoLayers(4), per_micro_batch=per_micro_batch)
    return getattr(minka, name)()


def compiled(program, name):
    """(parallel function, is each micro-batch its own batch?): sums over the batch cannot be cut into micro-batches."""
    import minka
    for per_micro_batch in (False, True):
        step = minka.parallelize(program.step, method=method_of(name, per_micro_batch))
        try:
            step.compile(program.state, program.batch)
            return step, per_micro_batch
        except minka.Error as error:
            if per_micro_batch or "per_micro_batch=True" not in str(error):
                raise
    raise AssertionError("not reached")


def losses_of(step, state, batch):
    losses = []
    for _ in range(NUM_STEPS):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return losses


def difference(losses, wanted):
    return max(abs(a - b) / (abs(b) + 1e-6) for a, b in zip(losses, wanted))


def nudged(tree, seed):
    """Each float moved to a neighbour; whole numbers, which may be counters, stay (docs/design/0005)."""
    import jax
    import numpy as np
    random = np.random.default_rng(seed)

    def nudge(leaf):
        if not hasattr(leaf, "dtype") or not jax.numpy.issubdtype(leaf.dtype, np.floating):
            return leaf
        values = np.asarray(leaf)
        epsilon = float(jax.numpy.finfo(values.dtype).eps)
        moved = values * (1 + epsilon * random.choice([-1, 1], size=values.shape)).astype(values.dtype)
        return np.where(values == np.round(values), values, moved)

    return jax.tree.map(nudge, tree)


def correctness(program, method):
    """The fields of a row that say what came out."""
    import jax
    begin = time.perf_counter()
    step, per_micro_batch = compiled(program, method)
    seconds = time.perf_counter() - begin
    plan = step.plan.json
    stages = [stage["plan"] for stage in plan["stages"]] if method == "Pipeline" else [plan]
    step.check(program.state, program.batch, num_steps=NUM_STEPS)
    row = {"result": "equal", "planning_seconds": round(plan["search_seconds"], 1), "compiling_seconds": round(seconds, 1),
           "share_without_rule": max(stage["unsupported_flops_share"] for stage in stages),
           "without_rule": sorted({name for stage in stages for name in stage["unsupported_ops"]})}
    if per_micro_batch:  # another function of the batch
        return row | {"result": "equal per micro-batch"}
    jitted = jax.jit(program.step)
    wanted = losses_of(jitted, program.state, program.batch)
    losses = losses_of(step, program.state, program.batch)
    worst = difference(losses, wanted)
    row["loss_difference"] = worst
    if worst <= LOSS_TOLERANCE:
        return row
    draws = [losses_of(jitted, nudged(program.state, seed), nudged(program.batch, seed)) for seed in range(NUDGES)]
    row["nudged_loss_difference"] = max(difference(draw, wanted) for draw in draws)
    is_rounding = difference(losses[:1], wanted[:1]) <= LOSS_TOLERANCE and worst <= 4 * row["nudged_loss_difference"]
    return row | ({} if is_rounding else {"result": "other losses"})


TIMES = ("step_ms", "jax_ms", "ratio", "jax_threads")


def copy_of(leaf):
    import jax
    import numpy as np
    is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # numpy cannot copy these
    return jax.numpy.copy(leaf) if is_key else np.array(leaf)


def step_times(program, method, turns):
    """Medians in ms of this method and of jax.jit with data parallelism, which take turns."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(np.array(jax.devices()[:NUM_DEVICES]), ("devices",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("devices"))
    data = jax.jit(program.step, donate_argnums=0, in_shardings=(whole, split), out_shardings=whole)
    steps = {"step_ms": compiled(program, method)[0], "jax_ms": data}
    states = {name: jax.tree.map(copy_of, program.state) for name in steps}  # donated
    seconds = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(NUM_STEPS):
                states[name], loss = step(states[name], program.batch)
            float(loss)
            if turn > 0:
                seconds[name].append((time.perf_counter() - begin) / NUM_STEPS)
    medians = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    return {name: round(ms, 2) for name, ms in medians.items()} | {"ratio": round(medians["step_ms"] / medians["jax_ms"], 3)}


def run_one(model, method, turns):
    """One pair, in this process; prints its row."""
    import jax
    import minka
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    program = models()[model]()
    minka.init(num_devices=NUM_DEVICES, progress=False, cost_model="measured" if turns else "roofline")
    try:
        row = step_times(program, method, turns) if turns else correctness(program, method)
    except minka.Error as error:
        what = "refused" if error.code in ("INVALID_ARGUMENT", "UNIMPLEMENTED") else "differs" if error.code == "ABORTED" else "failed"
        row = {"result": what, "message": str(error)}
    minka.shutdown()
    print("row: " + json.dumps(row))


def run_apart(model, method, args):
    """The pair's row, from a process of its own."""
    environment = {"JAX_PLATFORMS": "cpu"} | (KEPT_MEMORY if args.times else {"XLA_FLAGS": FAST_CODE})
    command = [sys.executable, __file__, "--one", model, method] + (["--times", str(args.times)] if args.times else [])
    try:
        row, failure = row_by_row.row_apart(command, environment, args.timeout)
    except subprocess.TimeoutExpired:
        return {"result": f"not within {args.timeout} s"}
    return row or {"result": "fell over", "message": failure}


def read_rows():
    path = FOLDER / "results.json"
    return {(row["model"], row["method"]): row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}


def write_rows(rows):
    lines = ",\n".join(" " + json.dumps(row) for row in rows.values())
    (FOLDER / "results.json").write_text(f'{{"rows": [\n{lines}\n]}}\n')
    (FOLDER / "results.md").write_text(page(list(rows.values())))


def cell(row):
    if row is None:
        return ""
    text = row.get("result", "")
    if text.startswith("equal"):
        text = "equal" + ("¹" if text != "equal" else "²" if "nudged_loss_difference" in row else "") + f", {row['planning_seconds']:.1f} s"
    if "ratio" in row:
        threads = f", JAX in {row['jax_threads']} threads" if "jax_threads" in row else ""
        text += f", {row['step_ms']:.1f} ms ({row['ratio']:.2f}{threads})"
    return text


def page(rows):
    by_pair = {(row["model"], row["method"]): row for row in rows}
    names = list(dict.fromkeys(row["model"] for row in rows))
    lines = ["# Zoo", "",
             "Made by `zoo_benchmark.py --update`. Models of flax, keras, transformers and diffusers, small, with optimizers of optax:",
             f"{NUM_STEPS} training steps on {NUM_DEVICES} virtual CPU devices. *equal*: as near to one device as rounding lets it come to",
             "itself (docs/design/0005), and losses as `jax.jit` has them; then the seconds of planning, and, where it was measured, ms of a",
             "step by the plan of measured costs, with its ratio to `jax.jit` that splits the batch and keeps the state whole; with more threads than",
             "it takes by itself, as some rows gave it, JAX is slower. *rule*: the largest share of a step's work without an op rule, which every",
             "device does as a whole.", "",
             "| | " + " | ".join(METHODS) + " | rule |", "|---" * (len(METHODS) + 2) + "|"]
    for name in names:
        own = [by_pair.get((name, method)) for method in METHODS]
        share = max((row.get("share_without_rule", 0) for row in own if row), default=0)
        opcodes = sorted({opcode for row in own if row for opcode in row.get("without_rule", [])})
        rule = f"{100 * share:.2g} % ({', '.join(opcodes)})" if opcodes else ""
        lines.append(f"| {name} | " + " | ".join(cell(row) for row in own) + f" | {rule} |")
    lines += ["", "¹ per micro-batch: batch norms see one micro-batch, so the losses are not those of `jax.jit`.",
              "² training amplifies rounding: `jax.jit` from inputs moved by one rounding has losses as far away.", ""]
    messages = [row for row in rows if "message" in row]
    lines += [f"- {row['model']}, {row['method']}: {row['message'].splitlines()[0]}" for row in messages]
    equal = sum(row.get("result", "").startswith("equal") for row in rows)
    return "\n".join(lines + ["", f"{len(rows)} pairs, {equal} equal."]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", nargs="+", default=["*"], help="globs on names of models")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--times", type=int, default=0, metavar="TURNS", help="measure step times, so many turns of three steps, and nothing else")
    parser.add_argument("--timeout", type=int, default=900, metavar="SECONDS")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "METHOD"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return run_one(*args.one, args.times)
    failed = 0
    for model in models():
        if not any(fnmatch.fnmatch(model, pattern) for pattern in args.filter):
            continue
        for method in args.methods:
            row = {"model": model, "method": method} | run_apart(model, method, args)
            print(json.dumps(row), flush=True)
            failed += row.get("result", "equal") not in ("equal", "equal per micro-batch", "refused")
            if args.update:
                rows = read_rows()
                known = rows.get((model, method), {})
                if args.times:  # what cannot be measured any more has no times
                    rest = {key: value for key, value in known.items() if key not in TIMES}
                    rows[model, method] = rest | ({key: row[key] for key in TIMES if key in row} if "ratio" in row else {})
                else:
                    rest = {key: value for key, value in row.items() if key not in TIMES}
                    rows[model, method] = rest | {key: known[key] for key in TIMES if key in known}
                write_rows(rows)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
