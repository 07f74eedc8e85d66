"""What the kernels of a program take, beside what its operations are predicted to take: where predictions are off.

    build/minka run gpt-tiny --mesh 1 --random-inputs 1 --dump-to build/dump
    LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1 NPROC=1 taskset -c 0 \
      build/venv-jax/bin/python benchmarks/prediction/operation_times.py build/dump/04-local.hlo.txt

Compiles the program of one device by this environment's JAX, whose profiler names kernels, on one core as `taskset` gives it and with
minka's allocator, without which new pages take a third of the time. Prices are of the last `minka profile` of this machine (or --profile
FILE), for all of its devices on all cores, here for one of them. A kernel's price is that of the operations in it; of one that is in several
kernels each has its part.

For a program of a GPU say --gpu. Where only JAX and a GPU are, --measure-only FILE writes what was measured, and --measured FILE elsewhere
lays it beside the prices.
"""

import argparse
import collections
import glob
import gzip
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = ")
METADATA = re.compile(r", metadata=\{[^}]*\}")
# As minka compiles for processors (runtime/pjrt/platform.cc).
OVERRIDES = [("xla_disable_hlo_passes", "cse_barrier_expander,reshape-mover,cpu-all-reduce-combiner,cpu-parallel-task-assigner"),
             ("xla_cpu_enable_concurrency_optimized_scheduler", False), ("xla_cpu_use_xnnpack", False), ("xla_cpu_enable_fast_min_max", False),
             ("xla_cpu_multi_thread_eigen", False)]
# Kernels that a command buffer launches have no names; without one, launches stand apart a little more.
GPU_OVERRIDES = [("xla_disable_hlo_passes", "reshape-mover"), ("xla_gpu_enable_command_buffer", "")]
# A kernel is named by the first of these that it holds.
KINDS = {"while": "loop", "conditional": "branch", "convolution": "convolution", "dot": "dot", "scatter": "scatter", "gather": "gather",
         "sort": "sort", "select-and-scatter": "pooling", "reduce-window": "reduce", "rng-bit-generator": "random", "reduce": "reduce"}
TRANSCENDENTAL = {"exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "erf", "power", "sine", "cosine", "rsqrt",
                  "sqrt", "cbrt", "tan", "atan2"}
MOVES = {"parameter", "constant", "transpose", "copy", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "reverse",
         "broadcast", "reshape", "iota", "bitcast", "convert"}


def with_names(text):
    """The program, its entry's operations named in their metadata, which XLA keeps."""
    lines, in_entry = [], False
    for line in text.splitlines():
        in_entry = line.startswith("ENTRY") or (in_entry and line != "}")
        found = INSTRUCTION.match(line) if in_entry else None
        if found:
            line = METADATA.sub("", line) + f', metadata={{op_name="{found[1]}"}}'
        lines.append(line)
    return "\n".join(lines)


def kernels_of(optimized):
    """By name of an optimised instruction, what it and what it calls are made of: {(opcode, operation that it was)}."""
    parts, calls, inside = collections.defaultdict(set), {}, None
    for line in optimized.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            inside = line.removeprefix("ENTRY ").split()[0].lstrip("%")
        found = INSTRUCTION.match(line)
        if not found:
            continue
        of = re.search(r'op_name="([^"]*)"', line)
        part = (re.search(r" ([a-z][a-z0-9-]*)\(", line)[1], of[1] if of else "")
        parts[found[1]].add(part)
        parts["computation " + inside].add(part)
        if called := re.search(r"calls=%?([\w.-]+)", line):
            calls[found[1]] = called[1]
    return {name: parts["computation " + calls[name]] if name in calls else parts[name] for name in list(parts)}


def measure(text, steps, is_gpu):
    """Of a step, medians over steps: microseconds by name of the optimised instruction, their sum, and from the first kernel's begin to the
    last one's end; and the optimised program."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxlib import xla_client
    library = xla_client._xla
    hlo = getattr(xla_client, "hlo", library)  # of its own since JAX 0.11
    computation = hlo.XlaComputation(hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    program = library.mlir.hlo_to_stablehlo(computation.as_serialized_hlo_module_proto())
    device = jax.devices()[0]
    options = xla_client.CompileOptions()
    options.env_option_overrides = GPU_OVERRIDES if is_gpu else OVERRIDES
    executable = device.client.compile_and_load(program, library.DeviceList((device,)), options)

    def drawn(number, shape):
        if np.issubdtype(shape.numpy_dtype(), np.integer) or shape.numpy_dtype() == bool:
            return jnp.zeros(shape.dimensions(), shape.numpy_dtype())
        return 0.02 * jax.random.normal(jax.random.key(number), shape.dimensions()).astype(shape.numpy_dtype())

    inputs = [drawn(*each) for each in enumerate(computation.program_shape().parameter_shapes())]

    def run():
        arguments = [jnp.copy(each) for each in inputs]  # anew, as they may be donated
        jax.block_until_ready(arguments)
        results = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
        jax.block_until_ready(results)

    run()
    traces = tempfile.TemporaryDirectory()
    folder = traces.name
    of_step, sums, spans = collections.defaultdict(list), [], []
    for step in range(steps):
        with jax.profiler.trace(f"{folder}/{step}"):
            run()
        with gzip.open(glob.glob(f"{folder}/{step}/**/*.trace.json.gz", recursive=True)[0]) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X" and "hlo_op" in event.get("args", {})
                      and event["args"].get("hlo_module", "").startswith(computation_name(text))]
        if not events:
            raise SystemExit("JAX's profiler names no kernel of the program")
        times = collections.Counter()
        for event in events:
            times[event["args"]["hlo_op"]] += event["dur"]
        for name, us in times.items():
            of_step[name].append(us)
        sums.append(sum(times.values()))
        spans.append(max(event["ts"] + event["dur"] for event in events) - min(event["ts"] for event in events))
    return {"us": {name: statistics.median(times) for name, times in of_step.items()}, "sum": statistics.median(sums),
            "span": statistics.median(spans), "program": executable.hlo_modules()[0].to_string()}


def computation_name(text):
    return re.match(r"HloModule ([\w.-]+)", text)[1]


def kind_of(opcodes):
    for opcode, kind in KINDS.items():
        if opcode in opcodes:
            return kind
    if opcodes & TRANSCENDENTAL:
        return "transcendental"
    return "moves" if opcodes <= MOVES else "arithmetic"


def last_profile():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "minka"
    return max(cache.glob("profile-*.json"), key=lambda path: path.stat().st_mtime)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=pathlib.Path)
    parser.add_argument("--profile", type=pathlib.Path, help="default: the last of this machine")
    parser.add_argument("--prices", default="build/release/bin/operation_prices", help="the program that prices operations")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--top", type=int, default=15, help="kernels that are off most, to be listed")
    parser.add_argument("--kind", default="", help="list those of this kind alone")
    parser.add_argument("--gpu", action="store_true", help="the program is a GPU's")
    parser.add_argument("--measure-only", type=pathlib.Path, metavar="FILE", help="write what is measured, and end")
    parser.add_argument("--measured", type=pathlib.Path, metavar="FILE", help="what was measured of this module, by --measure-only")
    args = parser.parse_args()
    text = args.module.read_text()
    found = json.loads(args.measured.read_text()) if args.measured else measure(with_names(text), args.steps, args.gpu)
    if args.measure_only:
        args.measure_only.write_text(json.dumps(found))
        return
    if computation_name(found["program"]) != computation_name(text):
        parser.error(f"{args.measured} is of {computation_name(found['program'])}, {args.module} of {computation_name(text)}")
    measured, whole = found["us"], found["sum"]
    profile = args.profile or last_profile()
    cores = json.loads(profile.read_text())["cores"]
    command = [args.prices, args.module, "--profile", profile] + ["--gpu"] * args.gpu
    priced = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    price = {row["name"]: cores * row["us"] for row in priced}
    opcode = {row["name"]: row["opcode"] for row in priced}

    kernels = {name: parts for name, parts in kernels_of(found["program"]).items() if name in measured}
    # XLA gives what it makes of an operation, such as views of its result, the operation's name, too.
    def holds(part):
        made_of = opcode.get(part[1])
        return part[0] == made_of or (part[0] == "custom-call" and made_of in ("dot", "convolution"))  # of a library

    kept_names = {part[1] for parts in kernels.values() for part in parts if holds(part)}
    within = {kernel: {part[1] for part in parts if part[1] in price and (part[1] not in kept_names or holds(part))}
              for kernel, parts in kernels.items()}
    num_kernels = collections.Counter(name for operations in within.values() for name in operations)
    rows = []
    for kernel, us in measured.items():
        operations = within.get(kernel, set())
        predicted = sum(price[name] / num_kernels[name] for name in operations)
        opcodes = {opcode[part[1]] if holds(part) else part[0] for part in kernels.get(kernel, ())}
        rows.append((kind_of(opcodes - {"fusion"}), kernel, predicted, us,
                     sorted(operations, key=price.get, reverse=True)))
    lost = sum(us for name, us in price.items() if num_kernels[name] == 0)

    print(f"{'kind':16} {'kernels':>7} {'predicted us':>12} {'measured us':>12} {'error':>8}")
    kinds = sorted({row[0] for row in rows}, key=lambda kind: -sum(row[3] for row in rows if row[0] == kind))
    for kind in kinds:
        of_kind = [row for row in rows if row[0] == kind]
        predicted, us = sum(row[2] for row in of_kind), sum(row[3] for row in of_kind)
        print(f"{kind:16} {len(of_kind):7} {predicted:12.0f} {us:12.0f} {100 * (predicted / us - 1):+7.1f} %")
    total = sum(price.values())
    print(f"{'all':16} {len(rows):7} {total:12.0f} {whole:12.0f} {100 * (total / whole - 1):+7.1f} %  ({lost:.0f} us of operations in no kernel;"
          f" first begin to last end {found['span']:.0f} us)")
    print()
    for kind, name, predicted, us, operations in sorted((row for row in rows if args.kind in ("", row[0])), key=lambda row: -abs(row[2] - row[3]))[:args.top]:
        print(f"{us - predicted:+8.0f} us: {predicted:.0f} predicted, {us:.0f} measured, {kind}, {name}: {', '.join(operations[:5])}")


main()
