"""What the tests share: four virtual devices, and models with their training steps."""

import functools
import os
from typing import Any, NamedTuple

# jaxlib's threads for collectives: as many as are in flight at once, else they wait for each other for ever.
os.environ.setdefault("NPROC", "32")

import flax.linen as nn
import jax
import jax.numpy as jnp
import minka
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState


# Of the CPU, for minka.jit.
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def devices():
    minka.init(num_devices=4)
    yield 4
    minka.shutdown()


class Mlp(nn.Module):
    """Four dense layers in two halves."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(64)(x))
        x = nn.relu(nn.Dense(32)(x))
        x = minka.mark_boundary(x)
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(16)(x)


class Transformer(nn.Module):
    """Two causal blocks over tokens."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(64, 32, name="embedding")(tokens)
        for layer in range(2):
            y = nn.LayerNorm(name=f"norm_{layer}")(x)
            mask = nn.make_causal_mask(tokens)
            x = x + nn.MultiHeadDotProductAttention(4, use_bias=False, name=f"attention_{layer}")(y, mask=mask)
            y = nn.gelu(nn.Dense(64, name=f"up_{layer}")(x))
            x = x + nn.Dense(32, name=f"down_{layer}")(y)
            if layer == 0:
                x = minka.mark_boundary(x)
        return nn.Dense(64, use_bias=False, name="head")(x)


class Program(NamedTuple):
    step: Any
    state: Any
    batches: list


def squared_error(out, batch):
    return jnp.mean((out - batch["y"]) ** 2)


def cross_entropy(out, batch):
    return optax.softmax_cross_entropy_with_integer_labels(out, batch["y"]).mean()


def make_step(error):
    def train_step(state, batch):
        def loss_fn(params):
            return error(state.apply_fn({"params": params}, batch["x"]), batch)

        loss, grads = minka.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return train_step


@functools.cache
def make_program(name):
    random = np.random.default_rng(0)
    if name == "mlp":
        model, error, optimizer = Mlp(), squared_error, optax.sgd(0.1, momentum=0.9)
        batches = [{"x": random.normal(size=(32, 16)).astype(np.float32), "y": random.normal(size=(32, 16)).astype(np.float32)}
                   for _ in range(3)]
    else:
        model, error = Transformer(), cross_entropy
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
        batches = [{"x": random.integers(64, size=(16, 8), dtype=np.int32), "y": random.integers(64, size=(16, 8), dtype=np.int32)}
                   for _ in range(3)]
    params = model.init(jax.random.key(0), batches[0]["x"])["params"]
    return Program(make_step(error), TrainState.create(apply_fn=model.apply, params=params, tx=optimizer), batches)


def run(step, state, batches):
    """(state after the batches, their losses)"""
    losses = []
    for batch in batches:
        state, loss = step(state, batch)
        losses.append(float(loss))
    return state, losses


def assert_close(now, wanted, tolerance=1e-4):
    """Trees of arrays, leaf by leaf in the 2-norm."""
    now, wanted = jax.tree.map(np.asarray, (now, wanted))
    assert jax.tree.structure(now) == jax.tree.structure(wanted)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(now), jax.tree.leaves(wanted)):
        assert a.shape == b.shape and a.dtype == b.dtype, path
        difference = np.linalg.norm(np.asarray(a - b, np.float64).ravel())
        assert difference <= tolerance * (1e-3 + np.linalg.norm(np.asarray(b, np.float64).ravel())), (path, difference)
