"""Evaluation on the state of a training step, where it lies."""

import jax
import minka
import numpy as np
import pytest
from conftest import make_program, run, squared_error


def evaluate(state, batch):
    out = state.apply_fn({"params": state.params}, batch["x"])
    return {"loss": squared_error(out, batch), "out": out}


METHODS = [minka.Shard(mesh="x=2,y=2"), minka.Zero3(num_micro_batches=2), minka.Pipeline(num_micro_batches=4, stages=2)]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_evaluation_is_that_of_jax_and_consumes_nothing(devices, method):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=method)
    eval_step = minka.parallelize(evaluate, follow=parallel)
    wanted_state, _ = run(jax.jit(step), state, batches[:1])
    state, _ = run(parallel, state, batches[:1])
    for batch in batches[1:]:
        wanted = jax.jit(evaluate)(wanted_state, batch)
        now = eval_step(state, batch)
        np.testing.assert_allclose(now["loss"], wanted["loss"], rtol=1e-4)
        np.testing.assert_allclose(now["out"], wanted["out"], rtol=1e-3, atol=1e-4)
        wanted_state, _ = jax.jit(step)(wanted_state, batch)
        state, _ = parallel(state, batch)


def test_a_part_of_the_state_and_a_key(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=minka.Zero3())
    wanted_state, _ = jax.jit(step)(state, batches[0])
    state, _ = parallel(state, batches[0])

    def noisy(params, key, scale, batch, power):
        noise = jax.random.normal(key, params["Dense_0"]["kernel"].shape)
        return ((batch["x"] @ (params["Dense_0"]["kernel"] + scale * noise)) ** power).sum(axis=1)

    eval_step = minka.parallelize(noisy, follow=parallel, static_argnums=[4])
    for seed in range(2):
        arguments = (jax.random.key(seed), 0.5, batches[0], 2)
        np.testing.assert_allclose(eval_step(state.params, *arguments), jax.jit(noisy, static_argnums=4)(wanted_state.params, *arguments),
                                   rtol=1e-4)


def test_what_is_no_state_of_it(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step)
    eval_step = minka.parallelize(evaluate, follow=parallel)
    with pytest.raises(minka.Error, match="evaluate takes no state of the function that it follows; give it what that returned last"):
        eval_step(state, batches[0])
    now, _ = parallel(state, batches[0])
    eval_step(now, batches[0])
    with pytest.raises(minka.Error, match="params/Dense_0/bias is not the state of train_step; give what that returned"):
        eval_step(now.replace(params=now.params | {"Dense_0": state.params["Dense_0"]}), batches[0])
    with pytest.raises(minka.Error, match="evaluate follows train_step; ask that for plan"):
        eval_step.plan
    with pytest.raises(minka.Error, match="evaluate follows train_step and has no plan of its own; ask train_step"):
        eval_step.lower(now, batches[0]).plan("p3.16xlarge")
    with pytest.raises(minka.Error, match="evaluate follows train_step and has no plan of its own; ask train_step"):
        eval_step.lower(now, batches[0]).explain()
    parallel(now, batches[0])
    with pytest.raises(minka.Error, match="was consumed by a step; use what that returned"):
        eval_step(now, batches[0])
    with pytest.raises(minka.Error, match="give one of them"):
        minka.parallelize(evaluate, follow=parallel, method=minka.Shard())
