"""What a plan computes, what its shardings are worth, and how it shows."""

import re
import subprocess
import sys

import jax
import minka
import numpy as np
import optax
import pytest
from conftest import make_program

METHODS = [minka.Shard(mesh="x=2,y=2"), minka.Zero2(num_micro_batches=2), minka.Pipeline(num_micro_batches=4, stages=2)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_check_finds_what_one_device_computes_and_consumes_nothing(devices, method):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=method)
    state, loss = parallel(state, batches[0])
    show = [sys.executable, "-c", "import os; print({name: os.environ.get(name) for name in ('XLA_FLAGS', 'NPROC', 'TF_CPP_MIN_LOG_LEVEL')})"]
    before = subprocess.run(show, check=True, capture_output=True).stdout
    report = parallel.check(state, batches[1], num_steps=2)
    assert report.startswith("compared with one device after 2 steps, ")
    assert len(re.findall(r" ok\n", report)) == 10
    assert subprocess.run(show, check=True, capture_output=True).stdout == before  # children get no flags of another XLA
    state, loss = parallel(state, batches[1])
    assert np.isfinite(float(loss))


def test_explain(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=minka.Shard(mesh="x=2,y=2", pins=["*Dense_1/kernel=[-,x]"]))
    lowered = parallel.lower(state, batches[0])
    table = lowered.explain("params/*kernel")
    assert table.startswith("The best plans on mesh x=2,y=2 with params/Dense_0/kernel pinned ('*': as planned):\n")
    rows = table.splitlines()[2:]
    # Whole, split once, twice in either order along one dimension or along both.
    assert len(rows) == 9 and sum(row.startswith("*") for row in rows) == 1
    with pytest.raises(minka.Error, match="call it, or its method compile, first"):
        parallel.explain("params/*kernel")
    parallel.compile(state, batches[0])
    assert parallel.explain("params/*kernel") == table
    with pytest.raises(minka.Error, match="no parameter of train_step matches weights"):
        parallel.explain("weights")


def test_explain_of_a_pipeline(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=minka.Pipeline(stages=2, num_micro_batches=4))
    whole = parallel.lower(state, batches[0]).explain()
    assert "\nThe longest is stage " in whole and "\n*  as planned " in whole
    parallel.compile(state, batches[0])
    kernel = parallel.explain("params/Dense_0/kernel", stage=0)
    assert kernel.startswith("The best plans of stage 0 on mesh 0, ") and "\n*  [" in kernel
    assert parallel.explain(stage=1).startswith("stage 1 of train_step: layers ")
    assert "    cost       " in parallel.explain(operation="*dot*")
    with pytest.raises(minka.Error, match="there is no stage 2: there are stages 0 to 1"):
        parallel.explain(stage=2)
    with pytest.raises(minka.Error, match="pattern and operation ask two things"):
        parallel.explain("params/*", operation="*dot*")


def test_notebooks_show_tables_and_fetch_nothing(devices):
    parallel = minka.parallelize(lambda w, x: (w * 2, (x @ w).sum()))
    state, _ = parallel(np.ones((8, 4), np.float32), np.ones((16, 8), np.float32))
    shown = parallel.plan._repr_html_()
    assert shown.startswith("<pre") and "step time" in shown and "white-space: pre" in shown
    before = state._repr_html_()
    assert before == f"<b>w</b> <code>{state.layout}</code>" and "f32[8,4]" in before
    parallel(state, np.ones((16, 8), np.float32))
    assert "consumed by a step" in state._repr_html_()


def test_tables_speak_of_the_model_and_fold_equal_layers(devices):
    weights = {"params": {f"h_{i}": {"w": np.ones((16, 16), np.float32)} for i in range(12)} | {"head": np.ones((16, 4), np.float32)}}
    optimizer = optax.adamw(1e-3)

    def step(state, x):
        def loss_fn(weights):
            y = x
            for i in range(12):
                with jax.named_scope(f"h_{i}"):
                    y = jax.numpy.tanh(y @ weights["params"][f"h_{i}"]["w"])
            return (y @ weights["params"]["head"]).mean()

        weights, moments = state
        loss, grads = minka.value_and_grad(loss_fn)(weights)
        updates, moments = optimizer.update(grads, moments, weights)
        return (optax.apply_updates(weights, updates), moments), loss

    parallel = minka.parallelize(step, method=minka.Zero3())
    plan = parallel.compile((weights, optimizer.init(weights)), np.ones((16, 16), np.float32))
    # Without the moments, which are twice as many.
    assert plan.json["num_parameters"] == 12 * 16 * 16 + 16 * 4
    assert re.search(r"\n0/params/h_\*/w +12  f32\[16,16\] ", str(plan))
    assert re.search(r"\n26 tensors of the optimizer, each as its parameter: ", str(plan))
    assert "jit(step)" not in str(plan) and re.search(r"\njvp\(h_\*\)/tanh +\d+ ", str(plan)), plan
