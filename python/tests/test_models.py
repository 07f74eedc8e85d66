"""What users write with flax and optax: convolutions with batch norm, dropout, recurrent and scanned layers, other optimizers."""

import flax.linen as nn
import jax
import minka
import numpy as np
import optax
import pytest
from conftest import Program, assert_close, cross_entropy, run


class Convolutions(nn.Module):
    @nn.compact
    def __call__(self, x):
        # Without a bias, whose gradient would be rounding noise in front of a batch norm.
        x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(16, (3, 3), use_bias=False)(x)))
        x = nn.relu(nn.Conv(32, (3, 3), strides=2)(nn.max_pool(x, (2, 2), (2, 2))))
        return nn.Dense(10)(x.mean((1, 2)))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(32)(nn.RNN(nn.LSTMCell(32))(nn.Embed(32, 16)(tokens)))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        x = x + nn.MultiHeadDotProductAttention(4, use_bias=False)(nn.LayerNorm()(x))
        return x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x)))), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return nn.Dense(32)(layers()(nn.Embed(32, 32)(tokens), None)[0])


class Dropout(nn.Module):
    @nn.compact
    def __call__(self, x, key):
        x = nn.Dropout(0.5, deterministic=False)(nn.relu(nn.Dense(64)(x)), rng=key)
        return nn.Dense(8)(x)


def labels(classes, *shape):
    return np.random.default_rng(1).integers(classes, size=shape, dtype=np.int32)


def of_params(model, x, y, optimizer):
    params = model.init(jax.random.key(0), x)

    def step(state, batch):
        params, moments = state
        loss, grads = minka.value_and_grad(lambda p: cross_entropy(model.apply(p, batch["x"]), batch))(params)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    return Program(step, (params, optimizer.init(params)), [{"x": x, "y": y}] * 3)


def convolutions():
    model, optimizer = Convolutions(), optax.sgd(0.01, momentum=0.9, nesterov=True)
    x = np.random.default_rng(0).normal(size=(16, 16, 16, 3)).astype(np.float32)
    variables = model.init(jax.random.key(0), x)

    def step(state, batch):
        def loss_fn(params):
            out, updates = model.apply({"params": params, "batch_stats": state["statistics"]}, batch["x"], mutable=["batch_stats"])
            return cross_entropy(out, batch), updates["batch_stats"]

        (loss, statistics), grads = minka.value_and_grad(loss_fn, has_aux=True)(state["params"])
        updates, moments = optimizer.update(grads, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments, "statistics": statistics}, loss

    state = {"params": variables["params"], "moments": optimizer.init(variables["params"]), "statistics": variables["batch_stats"]}
    return Program(step, state, [{"x": x, "y": labels(10, 16)}] * 3)


def dropout():
    model, optimizer = Dropout(), optax.adafactor(1e-3)
    x = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    params = model.init(jax.random.key(0), x, jax.random.key(1))

    def step(state, batch):
        key, now = jax.random.split(state["key"])
        loss, grads = minka.value_and_grad(lambda p: cross_entropy(model.apply(p, batch["x"], now), batch))(state["params"])
        updates, moments = optimizer.update(grads, state["moments"], state["params"])
        return {"key": key, "params": optax.apply_updates(state["params"], updates), "moments": moments}, loss

    state = {"key": jax.random.PRNGKey(5), "params": params, "moments": optimizer.init(params)}
    return Program(step, state, [{"x": x, "y": labels(8, 16)}] * 3)


def recurrent():
    return of_params(Recurrent(), labels(32, 16, 12), labels(32, 16, 12), optax.adam(optax.cosine_decay_schedule(1e-3, 100)))


def scanned():
    return of_params(Scanned(), labels(32, 16, 12), labels(32, 16, 12), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))


@pytest.mark.parametrize("method", [minka.Shard(), minka.Zero3()], ids=lambda method: method.name)
@pytest.mark.parametrize("model", [convolutions, dropout, recurrent, scanned], ids=lambda model: model.__name__)
def test_three_steps_are_those_of_jax(devices, model, method):
    step, state, batches = model()
    wanted_state, wanted_losses = run(jax.jit(step), state, batches)
    now, losses = run(minka.parallelize(step, method=method), state, batches)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3)


def test_what_cannot_be_cut_is_said_in_python_s_terms(devices):
    step, state, batches = convolutions()
    with pytest.raises(minka.Error, match=r"BatchNorm_0/sub\) works on slices of the batch .* \(per_micro_batch=True\)$"):
        minka.parallelize(step, method=minka.Shard(num_micro_batches=2))(state, batches[0])
    step, state, batches = recurrent()
    with pytest.raises(minka.Error, match=r"no layers to part into stages: .* \(minka.mark_boundary ends one\); layers=N parts it into N layers$"):
        minka.parallelize(step, method=minka.Pipeline(num_micro_batches=2))(state, batches[0])
