"""What a user can do wrong is answered by a message that names the culprit and the way out."""

import re
import sys

import jax
import jax.numpy as jnp
import minka
import numpy as np
import pytest
from conftest import make_program


def refused(code, message):
    """The whole message; * stands for anything."""
    return pytest.raises(minka.Error, match="(?s)^" + re.escape(message).replace(r"\*", ".*") + "$", check=lambda error: error.code == code)


@minka.parallelize
def scale(state, batch):
    return {"w": state["w"] * 0.5}, (batch @ state["w"]).sum()


STATE = {"w": np.ones((8, 4), np.float32)}
BATCH = np.ones((16, 8), np.float32)


def test_before_init():
    with refused("FAILED_PRECONDITION", "minka has no devices yet; call minka.init(num_devices=...) first"):
        scale(STATE, BATCH)


def test_init_twice(devices):
    with refused("FAILED_PRECONDITION", "minka.init was called before; call minka.shutdown() first"):
        minka.init(num_devices=2)


def test_init_again_after_shutdown():
    for num_devices in (2, 4):
        minka.init(num_devices=num_devices)
        state, total = scale(STATE, BATCH)
        assert float(total) == 16 * 8 * 4
        minka.shutdown()
        # What is held is still there.
        np.testing.assert_array_equal(np.asarray(state["w"]), STATE["w"] * 0.5)


def test_init_with_other_devices():
    with refused("INVALID_ARGUMENT", "minka.init: cluster is 'tpu'; there are \"local\" and \"local-cuda\" (minka.jit plans for others)"):
        minka.init(cluster="tpu")
    with refused("INVALID_ARGUMENT", "minka.init: the workers of a hosts file run on cores so far; leave out hosts or local-cuda"):
        minka.init(cluster="local-cuda", hosts="hosts.json")
    # This machine has no GPU, or no plugin for one: what the command says is handed on.
    with refused("FAILED_PRECONDITION", "minka.init: no *cuda*"):
        minka.init(cluster="local-cuda")
    with refused("FAILED_PRECONDITION", "minka has no devices yet; call minka.init(num_devices=...) first"):
        minka.session.current()


@pytest.mark.parametrize("platforms, preallocate, warns", [("cuda,cpu", None, True), ("cpu", None, False), ("cuda", "false", False)])
def test_a_jax_that_holds_the_gpus_is_warned_of(monkeypatch, recwarn, platforms, preallocate, warns):
    if preallocate:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", preallocate)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jax", None)
        patch.setenv("JAX_PLATFORMS", platforms)
        minka.session._warn_of_jax()
    assert bool([w for w in recwarn if "JAX_PLATFORMS=cpu" in str(w.message)]) == warns


def test_planning_for_gpus_by_their_name(devices):
    now = minka.session.current()
    now.gpu, now.gpu_memory_bytes = "NVIDIA H100 80GB HBM3", 73 << 30
    assert "step time" in scale.lower(STATE, BATCH).explain()
    now.gpu = "Tesla T4"
    with refused("NOT_FOUND", "minka knows no rates of a Tesla T4, by which it could plan; minka.init(cost_model=\"measured\") measures them, and "
                              "minka.jit takes a file with them as cluster"):
        scale.lower(STATE, BATCH).explain()


def test_arrays_of_an_ended_session_are_taken_up(devices):
    state, _ = scale(STATE, BATCH)
    minka.shutdown()
    minka.init(num_devices=2)
    state, _ = scale(state, BATCH)
    np.testing.assert_array_equal(np.asarray(state["w"]), STATE["w"] * 0.25)


def test_plan_before_the_first_call(devices):
    with refused("FAILED_PRECONDITION", "train_step has no plan yet; call it, or its method compile, first"):
        minka.parallelize(make_program("mlp").step).plan


def test_state_used_after_it_was_consumed(devices):
    state, _ = scale(STATE, BATCH)
    scale(state, BATCH)
    with refused("FAILED_PRECONDITION", "w was consumed by an earlier step; use what that returned"):
        scale(state, BATCH)
    with refused("FAILED_PRECONDITION", "w was consumed by a step; use what that returned"):
        np.asarray(state["w"])
    assert repr(state["w"]) == "DistributedArray(w: consumed by a step)"


def test_another_tree(devices):
    scale(STATE, BATCH)
    with refused("INVALID_ARGUMENT", "the arguments are another tree than the step was planned for: w is missing; parallelize another "
                                     "function for these"):
        scale({"v": STATE["w"]}, BATCH)
    with refused("INVALID_ARGUMENT", "the arguments are another tree than the step was planned for: state/b is new; parallelize "
                                     "another function for these"):
        scale(STATE | {"b": 1.0}, BATCH)


def test_another_shape_or_type(devices):
    scale(STATE, BATCH)
    with refused("INVALID_ARGUMENT", "batch is float32[12, 8]; the step was planned for float32[16, 8]: give arrays of one size, or "
                                     "parallelize another function for these"):
        scale(STATE, BATCH[:12])
    with refused("INVALID_ARGUMENT", "w is int32[8, 4]; the step was planned for float32[8, 4]: *"):
        scale({"w": STATE["w"].astype(np.int32)}, BATCH)


@pytest.mark.parametrize("method, message", [
    (minka.DataParallel(), "batch has 30 examples along dimension 0, which 4 devices do not divide: DataParallel takes a multiple of 4"),
    (minka.Shard(num_micro_batches=4),
     "batch has 30 examples along dimension 0, which 4 micro-batches do not divide: Shard takes a multiple of 4"),
    (minka.Zero2(num_micro_batches=2),
     "batch has 30 examples along dimension 0, which 2 micro-batches on 4 devices do not divide: Zero2 takes a multiple of 8"),
])
def test_batch_that_is_not_divided(devices, method, message):
    with refused("INVALID_ARGUMENT", message):
        minka.parallelize(lambda state, batch: (state, batch.sum()), method=method)(STATE, np.ones((30, 8), np.float32))


def test_batch_of_two_sizes(devices):
    with refused("INVALID_ARGUMENT", "batch/y has 8 examples along dimension 0, batch/x has 16; what does not count examples is to be an "
                                     "argument of its own, which batch_argnums does not name"):
        minka.parallelize(lambda state, batch: (state, batch["x"].sum()))(STATE, {"x": BATCH, "y": BATCH[:8]})


def test_state_that_changes_its_type(devices):
    with refused("INVALID_ARGUMENT", "state/w goes in as float32[8, 4] and comes out as bfloat16[8, 4]; state keeps its shape and type"):
        minka.parallelize(lambda state, batch: {"w": state["w"].astype(jnp.bfloat16)})(STATE, BATCH)


def test_what_is_no_array(devices):
    with refused("INVALID_ARGUMENT", "state/name is str, which is no array; name its argument in static_argnums, or leave it out of the "
                                     "tree"):
        minka.parallelize(lambda state, batch: state)(STATE | {"name": "mlp"}, BATCH)


def test_callback_into_python(devices):
    def step(w, batch):
        jax.debug.print("{}", batch.sum())
        return w, batch.sum()

    with refused("INVALID_ARGUMENT", "*test_errors.py:*: jit(step)/*debug_* calls back into Python (xla_*python_cpu_callback), which runs on "
                                     "no other device: "
                                     "leave out jax.debug.print, *"):
        minka.parallelize(step)(STATE["w"], BATCH)


def test_pipeline_without_a_loss(devices):
    with refused("INVALID_ARGUMENT", "minka.Pipeline cuts the forward pass, and the step does not say what its loss is: differentiate with "
                                     "minka.value_and_grad or minka.grad in place of JAX's"):
        minka.parallelize(lambda w, batch: w - jax.grad(lambda w: (batch @ w).sum())(w), method=minka.Pipeline())(STATE["w"], BATCH)


def test_two_derivatives(devices):
    def step(w, batch):
        def loss(w):
            return (batch @ w).sum()

        return w - minka.grad(loss)(w) - minka.grad(loss)(w)

    with refused("INVALID_ARGUMENT", "the step calls minka.grad or minka.value_and_grad twice; *"):
        minka.parallelize(step)(STATE["w"], BATCH)


def test_message_of_the_planner(devices):
    with refused("INVALID_ARGUMENT", "*\"no-such-schedule\"*"):
        step, state, batches = make_program("mlp")
        minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=2, schedule="no-such-schedule"))(state, batches[0])
