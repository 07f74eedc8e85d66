"""Three steps by every method compute what jax.jit computes."""

import jax
import jax.numpy as jnp
import minka
import numpy as np
import pytest
from conftest import assert_close, make_program, run

METHODS = {
    "shard": minka.Shard(),
    "shard_2x2": minka.Shard(mesh="x=2,y=2"),
    "micro_batches": minka.Shard(num_micro_batches=2),
    "data": minka.DataParallel(),
    "zero2": minka.Zero2(),
    "zero3": minka.Zero3(),
    "pipeline": minka.Pipeline(num_micro_batches=4, stages=2),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("program", ["mlp", "transformer"])
def test_three_steps_are_those_of_jax(devices, program, method):
    step, state, batches = make_program(program)
    wanted_state, wanted_losses = run(jax.jit(step), state, batches)
    parallel = minka.parallelize(step, method=METHODS[method])
    now, losses = run(parallel, state, batches)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3 if program == "transformer" else 1e-4)


def test_pipeline_is_cut_at_the_boundary(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=2))
    parallel.compile(state, batches[0])
    assert [stage["layers"] for stage in parallel.plan.json["stages"]] == [[0], [1]]


@pytest.mark.parametrize("method", [minka.Shard(), minka.Pipeline(num_micro_batches=2, stages=2)])
def test_derivative_of_a_copy_in_another_type(devices, method):
    def step(params, x):
        def loss_fn(half):
            y = minka.mark_boundary(jnp.tanh(x.astype(jnp.bfloat16) @ half["a"]))
            return ((y @ half["b"]).astype(jnp.float32) ** 2).mean()

        half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        loss, grads = minka.value_and_grad(loss_fn)(half)
        return jax.tree.map(lambda w, g: w - 0.1 * g.astype(jnp.float32), params, grads), loss

    random = np.random.default_rng(0)
    params = {"a": random.normal(size=(16, 32)).astype(np.float32), "b": random.normal(size=(32, 8)).astype(np.float32)}
    batches = [random.normal(size=(32, 16)).astype(np.float32) for _ in range(3)]
    wanted, wanted_losses = run(jax.jit(step), params, batches)
    now, losses = run(minka.parallelize(step, method=method), params, batches)
    np.testing.assert_allclose(losses, wanted_losses, rtol=2e-2)
    assert_close(now, wanted, tolerance=2e-2)


def test_gradient_inside_of_the_loss(devices):
    """A penalty on the gradient with respect to the input."""

    def step(w, x):
        def loss_fn(w):
            slope = minka.grad(lambda x: jnp.tanh(x @ w).sum())(x)
            return (slope ** 2).mean()

        loss, gradient = minka.value_and_grad(loss_fn)(w)
        return w - 0.1 * gradient, loss

    w, x = np.full((8, 4), 0.1, np.float32), np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8)
    wanted, wanted_losses = run(jax.jit(step), w, [x])
    now, losses = run(minka.parallelize(step), w, [x])
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    assert_close(now, wanted)
