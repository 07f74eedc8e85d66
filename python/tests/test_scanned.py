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
