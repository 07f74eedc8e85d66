"""Layers and stages as they are asked for."""

import math
import re

import jax
import minka
import numpy as np
import pytest
from conftest import assert_close, make_program, run


def stages_of(plan):
    """(layers, devices) of each stage."""
    return [(stage["layers"], math.prod(map(int, re.findall(r"=(\d+)", stage["plan"]["stages"][0]["mesh"]))))
            for stage in plan.json["stages"]]


@pytest.mark.parametrize("options, wanted", [
    ({"layers": minka.AutoLayers(3), "stages": minka.ManualStages(stage_of_layer=[0, 0, 1])}, [([0, 1], 2), ([2], 2)]),
    ({"layers": 2, "stages": minka.UniformStages(2)}, [([0], 2), ([1], 2)]),
    ({"stages": minka.ManualStages(stage_of_layer=[0, 1], submeshes=[1, 2])}, [([0], 1), ([1], 2)]),
    ({"stages": [0, 1], "submeshes": ["x=2,y=1", "x=1,y=2"]}, [([0], 2), ([1], 2)]),
    ({"layers": ["params/Dense_1/*"], "stages": [0, 1]}, [([0], 2), ([1], 2)]),
], ids=["manual", "uniform", "unequal", "shapes", "named"])
def test_stages_are_those_asked_for_and_compute_what_jax_does(devices, options, wanted):
    step, state, batches = make_program("mlp")
    wanted_state, wanted_losses = run(jax.jit(step), state, batches)
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, **options))
    now, losses = run(parallel, state, batches)
    assert stages_of(parallel.plan) == wanted
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state)


@pytest.mark.parametrize("layers", [2, minka.AutoLayers(2)], ids=["number", "auto"])
def test_a_step_that_returns_new_state_alone_has_a_backward_pass(devices, layers):
    def step(weights, x):
        def loss_of(weights):
            return jax.numpy.square(jax.numpy.tanh(x @ weights[0]) @ weights[1]).mean()

        return [w - 0.1 * g for w, g in zip(weights, minka.grad(loss_of)(weights))]

    weights = list(np.random.default_rng(0).normal(size=(2, 16, 16)).astype(np.float32))
    x = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=2, layers=layers, stages=2))
    assert_close(parallel(weights, x), jax.jit(step)(weights, x))
    assert parallel.plan.json["schedule"] != "inference"
    assert all(stage["backward_us"] + stage.get("weight_gradient_us", 0) > 0 for stage in parallel.plan.json["stages"])


def test_auto_stages_take_what_is_fastest(devices):
    step, state, batches = make_program("mlp")
    steps = {stages: minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, layers=4, stages=stages))
             for stages in (minka.AutoStages(), minka.UniformStages(2), minka.UniformStages(4))}
    times = {stages: parallel.compile(state, batches[0]).json["step_time_us"] for stages, parallel in steps.items()}
    assert times[minka.AutoStages()] <= min(times.values()) * (1 + 1e-9)


def test_auto_stages_on_meshes_of_the_sizes_allowed(devices):
    step, state, batches = make_program("mlp")
    for choice in (1, 2):
        parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, layers=4, stages=minka.AutoStages([choice])))
        parallel.compile(state, batches[0])
        assert {num_devices for _, num_devices in stages_of(parallel.plan)} == {choice}


def test_candidates_are_what_stages_were_searched_from(devices):
    step, state, batches = make_program("mlp")
    plan = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, layers=4, stages="auto")).compile(state, batches[0])
    rows = plan.candidates()["candidates"]
    chosen = [row for row in rows if row.get("stage_of_plan") is not None]
    assert len(chosen) == len(stages_of(plan))
    assert all(row["step_us"] > 0 and row["peak_bytes"] > 0 for row in rows)
    one_mesh = minka.parallelize(step, method=minka.Shard()).compile(state, batches[0])
    with pytest.raises(minka.Error, match="a plan of one mesh has no stages to search for"):
        one_mesh.candidates()
    given = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, layers=2, stages=minka.UniformStages(2), submeshes=[2, 2]))
    with pytest.raises(minka.Error, match="the submeshes were given, not searched for"):
        given.compile(state, batches[0]).candidates()


@pytest.mark.parametrize("options, message", [
    ({"layers": "some"}, 'layers is "some"; take "marked", minka.AutoLayers'),
    ({"stages": "2"}, 'stages is "2"; take "auto", minka.UniformStages'),
    ({"layers": minka.AutoLayers(0)}, "0 layers are asked for; at least 1 is needed"),
    ({"stages": 0}, "0 stages are asked for; at least 1 is needed"),
    ({"stages": minka.ManualStages(stage_of_layer=[0], submeshes=[4]), "submeshes": [4]}, "submeshes are named by minka.ManualStages, too"),
    ({"stages": minka.AutoStages([2]), "submeshes": [4]}, "submeshes say what meshes there are, and minka.AutoStages of what"),
])
def test_what_says_nothing_is_refused_at_once(options, message):
    with pytest.raises(minka.Error, match=f"minka.Pipeline: {message}") as raised:
        minka.Pipeline(**options)
    assert raised.value.code == "INVALID_ARGUMENT"


def test_more_stages_than_layers(devices):
    step, state, batches = make_program("mlp")
    with pytest.raises(minka.Error, match=r"4 stages are asked for, but train_step has 2 layers, .* \(layers=N parts it into N\)"):
        minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=4))(state, batches[0])
