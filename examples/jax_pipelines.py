"""Pipelines of a flax model on eight devices of this machine: stages by hand, then by search, then what was decided and why.

    PYTHONPATH=build/release/python build/venv-jax/bin/python examples/jax_pipelines.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import minka
import numpy as np
import optax
from flax.training.train_state import TrainState

WIDTH, BATCH = 512, 512


class Mlp(nn.Module):
    marks: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(4 * WIDTH)(x))
        x = nn.relu(nn.Dense(WIDTH)(x))
        if self.marks:
            x = minka.mark_boundary(x)
        x = nn.relu(nn.Dense(4 * WIDTH)(x))
        return nn.Dense(WIDTH)(x)


# On one device: fit y = W x + b.
keys = jax.random.split(jax.random.key(0), 5)
w, b = jax.random.normal(keys[0], (WIDTH, WIDTH)), jax.random.normal(keys[1], (WIDTH,))
x = jax.random.normal(keys[2], (BATCH, WIDTH))
batch = {"x": x, "y": x @ w + b + 0.1 * jax.random.normal(keys[3], (BATCH, WIDTH))}
params = Mlp().init(keys[4], x)


def state_of(model):
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))


def train_step(state, batch):
    def loss_fn(params):
        return jnp.mean((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2)

    # Of minka, so that what follows the gradients is known from what makes them; outside of minka it is JAX's.
    return state.apply_gradients(grads=minka.grad(loss_fn)(state.params))


expected = jax.jit(train_step)(state_of(Mlp()), batch)


def norm(new, old):
    return np.sqrt(sum(np.square(np.asarray(a) - np.asarray(b)).sum() for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old))))


def compare(name, state):
    part = norm(state.params, expected.params) / norm(expected.params, params)
    print(f"{name}: differs from one device's step by {part:.1e} of it")
    assert part < 0.01


# By hand: the model marks where one stage ends; each gets as many devices.
minka.init(num_devices=8)
by_hand = minka.parallelize(train_step, method=minka.Pipeline(num_micro_batches=16, layers="marked", stages=2))
compare("two marked stages", by_hand(state_of(Mlp(marks=True)), batch))

# Or two devices for the first and six for the second.
uneven = minka.Pipeline(num_micro_batches=16, stages=minka.ManualStages(stage_of_layer=[0, 1], submeshes=[2, 6]))
compare("on two and six devices", minka.parallelize(train_step, method=uneven)(state_of(Mlp(marks=True)), batch))
minka.shutdown()

# By search: four layers of about equal work, then which of them are a stage, and on how many devices.
minka.init(num_devices=8)
method = minka.Pipeline(num_micro_batches=16, layers=minka.AutoLayers(4), stages="auto")
searched = minka.parallelize(train_step, method=method)
compare("searched", searched(state_of(Mlp()), batch))

# What was decided: which layers run where, and how long each stage takes; then how every array of a stage lies.
print(searched.plan)
# What it was decided from: runs of layers on the meshes that were looked at, with times and bytes.
candidates = searched.plan.candidates()["candidates"]
print(len(candidates), candidates[0])
# Why not otherwise: the next best pipelines and their prices; what other shardings of a weight would cost.
print(searched.explain())
print(searched.explain("params/*/kernel", stage=0))
# Every program as text, before and behind each pass.
searched.dump("build/jax_pipelines")
minka.shutdown()
