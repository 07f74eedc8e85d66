"""minka.jit against minka's own runtime and the faster of JAX's data-parallel and fully sharded steps, on eight virtual CPU devices.

    make python
    PYTHONPATH=build/release/python build/venv-jax/bin/python benchmarks/python/jit_benchmark.py --filter 'mlp*' --update

Six models of equal layers, unrolled and scanned (jit_models.py). Each runs in a process of its own, in which the ways take turns of three
steps, each on the state that the one before left. --update writes its row into jit_results.json and jit_results.md; rows that were not run
stay. On a machine that does nothing else.
"""

import collections
import re
import statistics
import time

import row_by_row

NUM_DEVICES, STEPS_PER_TURN = 8, 3
GOAL_RATIO = 1.05
LOSS_TOLERANCE = 2e-3  # relative to one device, after the first turn; rounding grows from step to step
# jemalloc keeps memory between steps, as minka's executables do theirs: by glibc a step of the wide transformer, scanned, maps its temporary
# memory anew each time and takes 802 ms in place of 671.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}


def names():
    from jit_models import MODELS
    return [name + form for name in MODELS for form in ("", ", scanned")]


def of_jax(program, splits_state):
    """jax.jit with the batch split; the state whole, or each leaf along its largest dimension that the devices divide."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(np.array(jax.devices()[:NUM_DEVICES]), ("devices",))

    def sharding(leaf):
        dims = [dim for dim, size in enumerate(leaf.shape) if size % NUM_DEVICES == 0]
        spec = PartitionSpec(*[None] * max(dims, key=lambda dim: leaf.shape[dim]), "devices") if splits_state and dims else PartitionSpec()
        return NamedSharding(mesh, spec)

    state = jax.tree.map(sharding, program.state)
    return jax.jit(program.step, donate_argnums=0, in_shardings=(state, NamedSharding(mesh, PartitionSpec("devices"))),
                   out_shardings=(state, NamedSharding(mesh, PartitionSpec())))


def collectives_of(text):
    kinds = re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
    return dict(sorted(collections.Counter(kinds).items()))


def measure(name, turns):
    """The row of a model, in this process."""
    import jax
    import minka
    from jit_models import MODELS
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    minka.init(num_devices=NUM_DEVICES, cost_model="measured", progress=False)
    program = MODELS[name.removesuffix(", scanned")](name.endswith(", scanned"))
    steps = {"jit": minka.jit(program.step), "runtime": minka.parallelize(program.step), "data": of_jax(program, False),
             "fsdp": of_jax(program, True)}
    state, on_one_device = program.state, jax.jit(program.step)
    for _ in range(STEPS_PER_TURN):
        state, loss = on_one_device(state, program.batch)
    expected_loss = float(loss)
    states, losses = dict.fromkeys(steps, program.state), {}
    seconds = {way: [] for way in steps}
    for turn in range(turns + 1):
        for way, step in steps.items():
            begin = time.perf_counter()
            for _ in range(STEPS_PER_TURN):
                states[way], loss = step(states[way], program.batch)
            last_loss = float(loss)
            losses.setdefault(way, last_loss)
            if isinstance(loss, jax.Array):
                jax.block_until_ready(states[way])
            if turn > 0:
                seconds[way].append((time.perf_counter() - begin) / STEPS_PER_TURN)
    planned = steps["jit"].plan.json
    wanted = dict(sorted((kind, count) for kind, count in planned["collectives"].items() if count))
    compiled = collectives_of(steps["jit"].lower(program.state, program.batch).compile().as_text())
    medians = {way: 1e3 * statistics.median(times) for way, times in seconds.items()}
    best = min(medians["data"], medians["fsdp"])
    minka.shutdown()
    return {"jax": jax.__version__, "mesh": planned["stages"][0]["mesh"], "milliseconds": {way: round(median, 1) for way, median in medians.items()},
            "ratio_to_runtime": round(medians["jit"] / medians["runtime"], 3), "ratio_to_jax": round(medians["jit"] / best, 3),
            "planned_collectives": wanted, "compiled_collectives": compiled,
            "loss_differences": {way: abs(loss - expected_loss) / abs(expected_loss) for way, loss in losses.items()}}


def faults(row):
    """What of the goals the row misses."""
    found = [f"{ratio} {row[ratio]:.2f}" for ratio in ("ratio_to_runtime", "ratio_to_jax") if row[ratio] > GOAL_RATIO]
    if row["planned_collectives"] != row["compiled_collectives"]:
        found.append(f"collectives {row['compiled_collectives']}, planned {row['planned_collectives']}")
    return found + [f"the loss of {way} differs by {row['loss_differences'][way]:.1e}" for way in ("jit", "runtime")
                    if not row["loss_differences"][way] <= LOSS_TOLERANCE]


def wrong_of_jax(row):
    """JAX's own steps whose loss is not one device's: where the state is donated, XNNPACK's products go wrong (docs/design/0004)."""
    return [way for way in ("data", "fsdp") if not row["loss_differences"][way] <= LOSS_TOLERANCE]


def page(rows):
    lines = ["# minka.jit on JAX's runtime", "",
             f"Made by `jit_benchmark.py --update`. Training steps of flax models on {NUM_DEVICES} virtual CPU devices; medians in ms of turns of",
             f"{STEPS_PER_TURN} steps, by the version *JAX*. *jit*: `minka.jit`; *runtime*: `minka.parallelize`, both by the best plan (`Shard`) by measured costs; *data*:",
             "`jax.jit` with the batch split and the state whole; *fsdp*: each tensor of the state split besides, along its largest dimension that the",
             f"devices divide. *to runtime* and *to JAX*: jit over runtime, and over the faster of data and fsdp; the goal of both is at most {GOAL_RATIO}.",
             "*collectives*: of the program that JAX compiles, and the plan's where they are other. Rows that jaxlib cannot run in the threads that it",
             "takes by itself say in how many they ran.", "",
             "| | JAX | plan | jit | runtime | data | fsdp | to runtime | to JAX | collectives |", "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        times = " | ".join(f"{row['milliseconds'][way]:.1f}" for way in ("jit", "runtime", "data", "fsdp"))
        kinds = ", ".join(f"{count} {kind}" for kind, count in row["compiled_collectives"].items())
        if row["compiled_collectives"] != row["planned_collectives"]:
            kinds += " (planned " + ", ".join(f"{count} {kind}" for kind, count in row["planned_collectives"].items()) + ")"
        threads = f" ({row['jax_threads']} threads)" if "jax_threads" in row else ""
        lines.append(f"| {row['name']}{threads} | {row['jax']} | {row['mesh']} | {times} | {row['ratio_to_runtime']:.2f} | {row['ratio_to_jax']:.2f} | {kinds} |")
    missed = [f"- {row['name']}: {fault}" for row in rows for fault in faults(row)]
    lines += ["", "Goals that are missed:", "", *missed] if missed else ["", "All goals are met."]
    wrong = [f"- {row['name']}: {way}, by {row['loss_differences'][way]:.1e}" for row in rows for way in wrong_of_jax(row)]
    if wrong:
        lines += ["", "Steps of JAX alone whose loss is not one device's, because XNNPACK's products go wrong where the state is donated:", "", *wrong]
    return "\n".join(lines) + "\n"


row_by_row.run(__file__, __doc__, "jit_results", names(), measure, faults, page, ENVIRONMENT)
