"""Layers in a scan as stages of a pipeline."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import minka
import numpy as np
import optax
import pytest
from conftest import assert_close, run
from test_models import Block, labels, of_params
from test_pipelines import stages_of


class MarkedBlock(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return minka.mark_boundary(Block()(x, None)[0]), None


class Scanned(nn.Module):
    block: Any
    remat: bool = False

    @nn.compact
    def __call__(self, tokens):
        block = nn.remat(self.block, prevent_cse=False) if self.remat else self.block
        layers = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
        return nn.Dense(32)(layers()(nn.Embed(32, 32)(tokens), None)[0])


@pytest.mark.parametrize("model, options, wanted", [
    (Scanned(Block), {"num_micro_batches": 2, "layers": 4, "stages": 2}, None),
    (Scanned(MarkedBlock), {"num_micro_batches": 2, "stages": [0, 0, 1, 1, 1]}, [([0, 1], 2), ([2, 3, 4], 2)]),
    (Scanned(MarkedBlock, remat=True), {"num_micro_batches": 1, "stages": 2}, None),
], ids=["found", "marked", "rematerialised"])
def test_layers_of_a_scan_are_stages(devices, model, options, wanted):
    step, state, batches = of_params(model, labels(32, 16, 12), labels(32, 16, 12), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))
    wanted_state, wanted_losses = run(jax.jit(step), state, batches)
    parallel = minka.parallelize(step, method=minka.Pipeline(**options))
    now, losses = run(parallel, state, batches)
    stages = stages_of(parallel.plan)
    assert len(stages) == 2 and (wanted is None or stages == wanted)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3)


def test_a_saved_plan_writes_the_loop_out_again(devices, tmp_path):
    def step(weights, x):
        def loss_fn(weights):
            return (jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, weights)[0] ** 2).mean()

        loss, gradients = minka.value_and_grad(loss_fn)(weights)
        return weights - 0.1 * gradients, loss

    weights = 0.3 * np.random.default_rng(0).normal(size=(4, 16, 16)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(32, 16)).astype(np.float32)
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=2, layers=4, stages=2))
    parallel.compile(weights, x)
    parallel.plan.save(tmp_path / "plan.json")
    now, loss = minka.parallelize(step, plan=tmp_path / "plan.json")(weights, x)
    wanted, wanted_loss = jax.jit(step)(weights, x)
    np.testing.assert_allclose(float(loss), wanted_loss, rtol=1e-5)
    assert_close(now, wanted)


def test_without_a_pipeline_the_loop_stays(devices):
    step, state, batches = of_params(Scanned(Block), labels(32, 16, 12), labels(32, 16, 12), optax.sgd(0.1))
    parallel = minka.parallelize(step)
    parallel.compile(state, batches[0])
    assert any(row[0].startswith("while") for row in parallel.plan.json["stages"][0]["operations"])


def stacked_step(num_layers=8, optimizer=optax.adamw(1e-2)):
    """(step, state, batch) of nothing but layers in a scan."""
    def step(state, batch):
        def loss_fn(params):
            out = jax.lax.scan(lambda x, layer: (x + jnp.tanh(x @ layer["w"] + layer["b"]), None), batch["x"], params)[0]
            return jnp.mean((out - batch["y"]) ** 2)

        loss, gradients = minka.value_and_grad(loss_fn)(state["params"])
        updates, moments = optimizer.update(gradients, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, loss

    random = np.random.default_rng(0)
    params = {"w": (0.1 * random.normal(size=(num_layers, 64, 64))).astype(np.float32), "b": np.zeros((num_layers, 64), np.float32)}
    batch = {name: random.normal(size=(16, 64)).astype(np.float32) for name in "xy"}
    return step, {"params": params, "moments": optimizer.init(params)}, batch


def state_bytes(plan):
    """By stage, of a device."""
    return [sum(row["bytes_per_device"] for row in stage["plan"]["parameters"] if row["role"] == "state")
            for stage in plan.json["stages"]]


@pytest.mark.parametrize("num_stages", [2, 4])
def test_each_stage_holds_its_layers_alone(devices, num_stages):
    step, state, batch = stacked_step()
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=2, layers=8, stages=num_stages, submeshes=[1] * num_stages))
    wanted_state, wanted_losses = run(jax.jit(step), state, [batch] * 3)
    now, losses = run(parallel, state, [batch] * 3)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3)
    whole = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
    assert max(state_bytes(parallel.plan)) <= 1.01 * whole / num_stages
    # And nothing of them is sent: what is sent once per step is a few scalars.
    once = [num_bytes for *_, per_micro_batch, _, _, num_bytes in parallel.plan.json["transfers"] if not per_micro_batch]
    assert sum(once) < 1000
    rows = 8 // num_stages
    assert now["params"]["w"].layout.startswith(f"f32[8,64,64] rows 0-{rows - 1}: f32[1,64,64]")


@pytest.mark.parametrize("name", ["adafactor", "lion", "clipped", "accumulated"])
def test_what_optimizers_keep_of_stacked_weights(devices, name):
    optimizer = {"adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=16), "lion": optax.lion(1e-3),
                 "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.lamb(1e-2)),
                 "accumulated": optax.MultiSteps(optax.sgd(0.1, momentum=0.9), every_k_schedule=2)}[name]
    step, state, batch = stacked_step(4, optimizer)
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=2, layers=4, stages=2))
    wanted_state, wanted_losses = run(jax.jit(step), state, [batch] * 3)
    now, losses = run(parallel, state, [batch] * 3)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3)


def test_stacked_state_is_made_checked_saved_and_followed_as_one_array(devices, tmp_path):
    step, state, batch = stacked_step(4)
    init = lambda key: jax.tree.map(lambda leaf: (0.1 * jax.random.uniform(key, np.shape(leaf))).astype(leaf.dtype), state)
    pipelined = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=2, layers=4, stages=2))
    sharded = minka.parallelize(step)
    for parallel in (pipelined, sharded):
        parallel.compile(jax.eval_shape(lambda: state), batch)
    begin = pipelined.create_state(init, jax.random.key(0))
    assert_close(begin, jax.jit(init)(jax.random.key(0)), tolerance=1e-6)
    assert "compared with one device after 2 steps" in pipelined.check(begin, batch, num_steps=2)

    def evaluate(state, batch):
        params = state["params"]
        out = jax.lax.scan(lambda x, layer: (x + jnp.tanh(x @ layer["w"] + layer["b"]), None), batch["x"], params)[0]
        return jnp.mean((out - batch["y"]) ** 2), jnp.linalg.norm(params["w"])

    wanted, wanted_loss = jax.jit(step)(init(jax.random.key(0)), batch)
    now, loss = pipelined(begin, batch)
    np.testing.assert_allclose(float(loss), wanted_loss, rtol=1e-4)
    np.testing.assert_allclose(minka.parallelize(evaluate, follow=pipelined)(now, batch), jax.jit(evaluate)(wanted, batch), rtol=1e-4)
    of_pipeline = pipelined.save(tmp_path / "pipeline", now, step=1)
    assert_close(sharded.restore(of_pipeline), now, tolerance=0)
    of_mesh = sharded.save(tmp_path / "mesh", sharded.restore(of_pipeline), step=1)
    assert_close(pipelined.restore(of_mesh), now, tolerance=0)
    assert_close(pipelined.restore(of_pipeline), now, tolerance=0)
    with pytest.raises(minka.Error, match="was consumed by an earlier step"):
        pipelined(begin, batch)


def test_names_of_stacked_weights_name_their_rows(devices):
    step, state, batch = stacked_step(4)
    pins = {"*params/w": jax.sharding.PartitionSpec(None, None, "model")}
    method = minka.Pipeline(num_micro_batches=2, layers=["*params/w[1]", "*params/w[2]", "*params/w[3]"], stages=[0, 0, 1, 1],
                            submeshes=["model=2", "model=2"], pins=pins)
    parallel = minka.parallelize(step, method=method)
    parallel.compile(state, batch)
    rows = [row for stage in parallel.plan.json["stages"] for row in stage["plan"]["parameters"]
            if row["name"].startswith("params/w[")]
    assert len(rows) == 4 and {row["sharding"] for row in rows} == {"[-,-,model]"}
    assert "params/w[0]" in parallel.explain("*params/w", stage=0)
