"""minka.jit: minka plans, and JAX runs what was planned, collective for collective."""

import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import minka
import numpy as np
import pytest
from conftest import assert_close, make_program, run
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from test_errors import refused
from test_models import convolutions, dropout, recurrent, scanned

METHODS = {
    "shard": minka.Shard(),
    "shard_2x4": minka.Shard(mesh="x=2,y=4"),
    "micro_batches": minka.Shard(num_micro_batches=2),
    "data": minka.DataParallel(),
    "zero2": minka.Zero2(),
    "zero3": minka.Zero3(),
}


def collectives(step):
    """Kind -> how often a step runs it, by what XLA makes of it: what stands in a loop counts for each turn."""
    text = step.compile().as_text()
    turns = dict(re.findall(r'body=%?([\w.-]+).*"known_trip_count":\{"n":"(\d+)"', text))
    counts, computation = Counter(), ""
    for line in text.splitlines():
        if begin := re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line):
            computation = begin[1]
        kinds = re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", line)
        counts.update({kind: int(turns.get(computation, 1)) for kind in kinds})
    return counts


@pytest.mark.parametrize("program, method", [*(("mlp", method) for method in METHODS), ("transformer", "micro_batches"),
                                             ("transformer", "zero3")])
def test_computes_what_jax_does_with_the_plan_s_collectives(program, method):
    step, state, batches = make_program(program)
    wanted_state, wanted_losses = run(jax.jit(step), state, batches)
    planned = minka.jit(step, method=METHODS[method])
    now, losses = run(planned, state, batches)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3 if program == "transformer" else 1e-4)
    assert collectives(planned.lower(state, batches[0])) == planned.plan.json["collectives"]
    sharding_of = jax.tree.leaves(planned.jax_shardings()[1][0])
    assert [leaf.sharding for leaf in jax.tree.leaves(now)] == sharding_of


@pytest.mark.parametrize("model", [convolutions, dropout, recurrent, scanned], ids=lambda model: model.__name__)
def test_three_steps_are_those_of_minka_and_of_jax(model):
    step, state, batches = model()
    wanted_state, wanted_losses = run(jax.jit(step), state, batches)
    now, losses = run(minka.jit(step, method=minka.Shard(mesh="x=4,y=2")), state, batches)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3)
    minka.init(num_devices=8)
    try:
        of_minka, losses_of_minka = run(minka.parallelize(step, method=minka.Shard(mesh="x=4,y=2")), state, batches)
        np.testing.assert_allclose(losses, losses_of_minka, rtol=1e-4)
        assert_close(now, jax.tree.map(np.asarray, of_minka), tolerance=5e-3)
    finally:
        minka.shutdown()


def squares(state, batch):
    """w is split as its pin says."""
    loss = jnp.mean((batch @ state["w"]) ** 2)
    return {"w": state["w"] * 0.5}, loss


STATE = {"w": np.arange(128, dtype=np.float32).reshape(16, 8)}
BATCH = np.ones((32, 16), np.float32)


@pytest.mark.parametrize("start", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_state_stays_where_the_plan_wants_it_and_is_donated(start):
    planned = minka.jit(squares, method=minka.Shard(mesh="x=2,y=4", pins=["w=[-,y]"]))
    first = {"w": start(STATE["w"])}
    state, loss = planned(first, BATCH)
    assert state["w"].sharding == NamedSharding(Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y")), PartitionSpec(None, "y"))
    assert planned.jax_shardings()[0][0]["w"] == state["w"].sharding
    again, _ = planned(state, BATCH)
    assert state["w"].is_deleted() and loss.sharding.is_fully_replicated
    with refused("FAILED_PRECONDITION", "w was consumed by an earlier step; use what that returned"):
        planned(state, BATCH)
    # What the caller had before the first step is the caller's.
    np.testing.assert_array_equal(np.asarray(first["w"]), STATE["w"])
    np.testing.assert_array_equal(np.asarray(again["w"]), STATE["w"] / 4)


def test_state_goes_to_minka_s_runtime_and_back():
    minka.init(num_devices=4)
    try:
        by_minka, by_jax = minka.parallelize(squares), minka.jit(squares, method=minka.Shard(mesh="x=8"))
        state, _ = by_minka(STATE, BATCH)
        state, _ = by_jax(state, BATCH)
        state, _ = by_minka(state, BATCH)
        np.testing.assert_array_equal(np.asarray(state["w"]), STATE["w"] / 8)
    finally:
        minka.shutdown()


def test_compiles_once():
    step, state, batches = make_program("mlp")
    compiled = []

    def on_event(name, _, fun_name="", **__):
        if name == "/jax/core/compile/backend_compile_duration":
            compiled.append(fun_name)

    planned = minka.jit(step)
    jax.monitoring.register_event_duration_secs_listener(on_event)
    for batch in batches:
        state, _ = planned(state, batch)
    planned(state, jax.tree.map(jnp.asarray, batch))
    assert compiled.count("jit(train_step)") == 1  # beside copies of what the caller gives


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_random_keys_go_in_and_out(implementation):
    def step(state, batch):
        key, now = jax.random.split(state["key"])
        return {"key": key, "w": state["w"] * 0.5}, (batch * jax.random.uniform(now, batch.shape)).sum()

    state = {"key": jax.random.key(3, impl=implementation), "w": np.ones((8, 8), np.float32)}
    wanted_state, wanted = run(jax.jit(step), state, [BATCH] * 3)
    now, sums = run(minka.jit(step, method=minka.DataParallel()), state, [BATCH] * 3)
    np.testing.assert_allclose(sums, wanted, rtol=1e-5)
    assert now["key"].dtype == state["key"].dtype
    np.testing.assert_array_equal(jax.random.key_data(now["key"]), jax.random.key_data(wanted_state["key"]))


@pytest.mark.parametrize("devices", [8, 4])
def test_a_mesh_of_jax_s_is_taken(devices):
    mesh = Mesh(np.array(jax.devices()[::-1][:devices]).reshape(2, -1), ("data", "model"))
    planned = minka.jit(squares, method=minka.Shard(pins=["w=[model,-]"]), mesh=mesh)
    state, _ = planned(STATE, BATCH)
    assert planned.plan.json["stages"][0]["mesh"] == f"data=2,model={devices // 2}"
    assert state["w"].sharding == NamedSharding(mesh, PartitionSpec("model"))
    np.testing.assert_array_equal(np.asarray(state["w"]), STATE["w"] / 2)


def test_static_and_keyword_arguments():
    @minka.jit(static_argnums=(1,), method=minka.DataParallel())
    def scaled(state, by, batch):
        return state * by, batch.sum()

    assert float(scaled(np.float32(3), 2, batch=BATCH)[0]) == 6
    assert float(scaled(np.float32(3), 4, batch=BATCH)[0]) == 12


def test_plans_for_a_cluster_that_is_not_there():
    mesh = AbstractMesh((8, 8), ("data", "model"))
    planned = minka.jit(squares, method=minka.Shard(pins=["w=[-,model]"]), mesh=mesh, cluster="p3.16xlarge:8")
    arguments = {"w": jax.ShapeDtypeStruct((512, 1024), jnp.float32)}, jax.ShapeDtypeStruct((4096, 512), jnp.float32)
    (state, _), (new_state, loss) = planned.jax_shardings(*arguments)
    assert state["w"] == new_state["w"] == NamedSharding(mesh, PartitionSpec(None, "model"))
    assert loss == NamedSharding(mesh, PartitionSpec())
    text = planned.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count('"stablehlo.all_reduce"') == planned.plan.json["collectives"]["all-reduce"]
    with refused("FAILED_PRECONDITION", "the plan is for data=8,model=8, an AbstractMesh without devices: give minka.jit a "
                                        "jax.sharding.Mesh to run on, or use compile, trace, lower and jax_shardings"):
        planned(*arguments)


def test_what_cannot_be():
    step, state, batches = make_program("mlp")
    with refused("FAILED_PRECONDITION", "the plan is for 16 devices, and JAX has 8 of platform cpu: "
                                        "XLA_FLAGS=--xla_force_host_platform_device_count=16, set before JAX starts, gives virtual ones"):
        minka.jit(step, method=minka.Shard(mesh="x=16"))(state, batches[0])
    with refused("INVALID_ARGUMENT", "minka.jit plans for one mesh, which Pipeline cuts into several: take minka.parallelize, which runs "
                                     "pipelines by itself"):
        minka.jit(step, method=minka.Pipeline(num_micro_batches=4, stages=2))(state, batches[0])
    with refused("INVALID_ARGUMENT", "minka.jit is given the mesh data=8 and a method for 2x4: leave one out"):
        minka.jit(step, method=minka.Shard(mesh="2x4"), mesh=AbstractMesh((8,), ("data",)))(state, batches[0])
    with refused("INVALID_ARGUMENT", "cluster p3.16xlarge:2 has 16 devices, the mesh 8"):
        minka.jit(step, cluster="p3.16xlarge:2")(state, batches[0])
    planned = minka.jit(squares)
    with refused("FAILED_PRECONDITION", "a function of minka.jit is called inside of another one that JAX traces: *; leave out the "
                                        "jax.jit, grad or scan around it*"):
        jax.lax.scan(planned, STATE, np.stack([BATCH] * 3))
    with refused("FAILED_PRECONDITION", "train_step has no plan yet; call it, or its method compile, first"):
        minka.jit(step).jax_shardings()


def test_another_tree_shape_or_type():
    planned = minka.jit(squares)
    planned(STATE, BATCH)
    with refused("INVALID_ARGUMENT", "the arguments are another tree than the step was planned for: state/b is new; parallelize another "
                                     "function for these"):
        planned(STATE | {"b": 1.0}, BATCH)
    for other in (BATCH[:16], jnp.asarray(BATCH[:16])):
        with refused("INVALID_ARGUMENT", "batch is float32[16, 16]; the step was planned for float32[32, 16]: give arrays of one size, or "
                                         "parallelize another function for these"):
            planned(STATE, other)


def test_dump(tmp_path):
    planned = minka.jit(squares, method=minka.DataParallel())
    planned.compile(STATE, BATCH)
    planned.dump(tmp_path / "dump")
    assert "channel_id=1" in (tmp_path / "dump" / "04-local.hlo.txt").read_text()


def test_planning_loads_no_plugin():
    program = """
import jax, minka, pathlib
mesh = jax.sharding.AbstractMesh((8,), ("data",))
print(minka.jit(lambda x: (x * 2, x.sum()), mesh=mesh).compile(jax.ShapeDtypeStruct((8,), "float32")).json["method"])
assert "xla_cpu_pjrt" not in pathlib.Path("/proc/self/maps").read_text()
"""
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "shard\n"


def test_example_leaves_nothing_of_the_extension_behind():
    """JAX's caches live until the process ends."""
    example = pathlib.Path(__file__).parents[2] / "examples" / "jax_four_ways.py"
    environment = os.environ | {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"}
    ended = subprocess.run([sys.executable, example], check=True, capture_output=True, text=True, env=environment)
    assert ended.stdout.count("loss 0.732") == 4 and "leaked" not in ended.stderr
