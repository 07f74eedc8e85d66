"""What counts as state, batch, key and constant; marks outside of minka."""

import jax
import jax.numpy as jnp
import minka
import numpy as np
import pytest

W = np.arange(32, dtype=np.float32).reshape(8, 4)
X = np.ones((16, 8), np.float32)


def roles(step):
    return {leaf.name: leaf.role for leaf in step.parameters}


def test_roles_by_what_comes_back():
    @minka.parallelize
    def step(params, momentum, key, rate, batch):
        return {"w": params["w"] * rate}, {"w": momentum["w"]}, rate * batch.sum()

    lowered = step.lower({"w": W}, {"w": W}, jax.random.PRNGKey(0), 0.1, X)
    assert roles(lowered) == {"params/w": "state", "momentum/w": "state", "key": "key", "rate": "constant", "batch": "batch"}
    assert [leaf.name for leaf in lowered.results] == ["params/w", "momentum/w", "result/2"]


def test_abstract_arguments_suffice_to_plan(devices):
    step = minka.parallelize(lambda w, x: (w + (x.T @ x) @ w, (x @ w).sum()))
    plan = step.compile(jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32))
    assert {row["name"]: row["role"] for row in plan.json["parameters"]} == {"w": "state", "x": "batch"}
    assert "predicted" in str(step.plan)


def test_keys_constants_and_keywords(devices):
    def step(w, key, rate, batch, power=1):
        noise = jax.random.normal(key, w.shape)
        return w * rate + noise, (batch @ w).sum() ** power

    parallel = minka.parallelize(step, batch_argnums=[3], static_argnums=[4])
    w = W
    for i, rate in enumerate([0.5, 0.25, 0.25]):
        key = jax.random.key(i) if i == 3 else jax.random.PRNGKey(i)
        wanted = jax.jit(step, static_argnums=4)(np.asarray(w), key, rate, X, 2)
        w, total = parallel(w, key, rate=rate, batch=X, power=2)
        np.testing.assert_allclose(np.asarray(w), wanted[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(float(total), wanted[1], rtol=1e-5)


def test_typed_keys(devices):
    def step(state, batch):
        key, now = jax.random.split(state["key"])
        return {"key": key, "w": state["w"] + jax.random.uniform(now, (8, 4))}, batch.sum()

    state = {"key": jax.random.key(7), "w": W}
    wanted = state
    parallel = minka.parallelize(step)
    for _ in range(2):
        wanted, _ = jax.jit(step)(wanted, X)
        state, _ = parallel(state, X)
    np.testing.assert_array_equal(np.asarray(state["key"]), jax.random.key_data(wanted["key"]))
    np.testing.assert_allclose(np.asarray(state["w"]), wanted["w"], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint32, jnp.bool_])
def test_types(devices, dtype):
    value = (W % 2).astype(dtype)
    state, out = minka.parallelize(lambda w, x: (w, jnp.where(x[:, :4] > 0, w[0, 0], w[1, 1])))(value, X)
    assert state.dtype == dtype and out.shape == (16, 4)
    np.testing.assert_array_equal(np.asarray(state), np.asarray(value))
    np.testing.assert_array_equal(jnp.asarray(np.asarray(out)), jnp.broadcast_to(value[0, 0], (16, 4)))


def test_marks_are_the_identity_without_minka():
    def loss(w):
        return (minka.mark_boundary({"y": X @ w})["y"] ** 2).sum()

    value, grads = jax.jit(minka.value_and_grad(loss))(W)
    wanted_value, wanted_grads = jax.value_and_grad(loss)(W)
    assert value == wanted_value
    np.testing.assert_array_equal(grads, wanted_grads)
    np.testing.assert_array_equal(minka.grad(loss)(W), wanted_grads)


def test_marks_inside_jit_vmap_and_checkpoint():
    @jax.jit
    def layer(w, x):
        return jax.vmap(lambda row: minka.mark_boundary(jnp.tanh(row @ w)))(x)

    def loss(params, x):
        return (layer(params["b"], jax.checkpoint(layer)(params["a"], x)) ** 2).sum(), {"rows": x.shape[0]}

    @minka.parallelize
    def step(params, x):
        (value, aux), grads = minka.value_and_grad(loss, has_aux=True)(params, x)
        return jax.tree.map(lambda w, g: w - g, params, grads), value, aux

    square = np.ones((8, 8), np.float32)
    lowered = step.lower({"a": square, "b": square}, X)
    assert b"layer_boundary 0" in lowered.hlo
    for mark in (b"gradient 0", b"gradient 1", b"loss 0"):
        assert lowered.hlo.count(mark) == 1


def test_marks_of_what_was_traced_before():
    @jax.jit
    def layer(w, x):
        return minka.mark_boundary(jnp.tanh(x @ w))

    def step(w, x):
        loss, grad = minka.value_and_grad(lambda w: layer(w, x).sum())(w)
        return w - grad, loss

    square = np.ones((8, 8), np.float32)
    jax.jit(step)(square, X)
    for _ in range(2):
        assert minka.parallelize(step).lower(square, X).hlo.count(b"layer_boundary 0") == 1


def test_every_call_of_a_function_with_a_boundary_ends_a_layer(devices):
    @jax.jit
    def layer(w, x):
        return minka.mark_boundary((jnp.tanh(x @ w), x[:, :1]))[0]

    def step(weights, x):
        def loss_fn(weights):
            y = x
            for w in weights:
                y = layer(w, y)
            return (y ** 2).mean()

        loss, grads = minka.value_and_grad(loss_fn)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, grads), loss

    weights = [np.full((8, 8), 0.1, np.float32) for _ in range(4)]
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=2, stages=2))
    wanted, wanted_loss = jax.jit(step)(weights, X)
    now, loss = parallel(weights, X)
    assert sum((stage["layers"] for stage in parallel.plan.json["stages"]), []) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(float(loss), wanted_loss, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(now[0]), wanted[0], rtol=1e-5)


def test_numbers_of_arguments_without_a_list(devices):
    def step(w, power, x):
        return w * power, (x @ w).sum() ** power

    parallel = minka.parallelize(step, static_argnums=1, batch_argnums=2)
    now, total = parallel(W, 2, X)
    np.testing.assert_allclose(np.asarray(now), W * 2)
    np.testing.assert_allclose(float(total), (X @ W).sum() ** 2, rtol=1e-5)
    last = minka.parallelize(lambda w, x, power: (w * power, (x @ w).sum()), static_argnums=-1)
    np.testing.assert_allclose(np.asarray(last(W, X, 3)[0]), W * 3)


@pytest.mark.parametrize("options, message", [
    ({"batch_argnums": [-3]}, "step: batch_argnums names argument -3, and 2 are given"),
    ({"static_argnums": 0}, "step: argument w is static and of type ndarray, which cannot be hashed; give a tuple or"),
])
def test_arguments_that_are_none_are_named(options, message):
    def step(w, x):
        return w, (x @ w).sum()

    with pytest.raises(minka.Error, match=message):
        minka.parallelize(step, **options).lower(W, X)
