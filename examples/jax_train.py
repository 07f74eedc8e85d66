"""A flax model trained on eight devices of this machine: one function, by two methods.

    PYTHONPATH=build/release/python build/venv-jax/bin/python examples/jax_train.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import minka
import numpy as np
import optax
from flax.training.train_state import TrainState


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(256)(x))
        x = minka.mark_boundary(x)
        return nn.Dense(32)(x)


model = Model()
random = np.random.default_rng(0)
x = random.normal(size=(64, 32)).astype(np.float32)
params = model.init(jax.random.key(0), x)["params"]
minka.init(num_devices=8)


@minka.parallelize(method=minka.Shard())
def train_step(state, batch):
    def loss_fn(params):
        out = state.apply_fn({"params": params}, batch["x"])
        return jnp.mean((out - batch["y"]) ** 2)

    loss, grads = minka.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


apply, tx = model.apply, optax.adamw(1e-3)
state = TrainState.create(apply_fn=apply, params=params, tx=tx)
for i in range(10):
    state, loss = train_step(state, {"x": x, "y": x})
print(train_step.plan)

# Four batches, put where the step reads them while the steps before run.
batches = ({"x": x + 0.01 * number, "y": x} for number in range(4))
for batch in minka.DataLoader(batches, train_step, prefetch=2):
    state, loss = train_step(state, batch)
print(state.params["Dense_0"]["kernel"].layout)
print(f"loss {float(loss):.4f}")

# The model on other data, with the weights where they lie; then a checkpoint, and the state from it.
@minka.parallelize(follow=train_step)
def evaluate(state, batch):
    out = state.apply_fn({"params": state.params}, batch["x"])
    return jnp.mean((out - batch["y"]) ** 2)


print(f"on other data {evaluate(state, {'x': x + 0.1, 'y': x}):.4f}")
checkpoint = train_step.save("build/jax_checkpoints", state, step=10)
state = train_step.restore(checkpoint)

# Does it compute what one device computes? What are shardings of a weight worth?
print(train_step.check(state, {"x": x, "y": x}))
print(train_step.explain("params/*kernel"))

# A plan that was kept needs no search.
train_step.plan.save("build/train_step.json")
again = minka.parallelize(train_step.__wrapped__, plan="build/train_step.json")
state, loss = again(state, {"x": x, "y": x})
print(f"loss {float(loss):.4f}")

# State that is made by a function of a key, where the plan wants it.
def init(key):
    return TrainState.create(apply_fn=apply, params=model.init(key, x)["params"], tx=tx)


again.compile(jax.eval_shape(init, jax.random.key(1)), {"x": x, "y": x})
state = again.create_state(init, jax.random.key(1))

# Where a user says how weights lie.
pinned = minka.Shard(mesh="data=2,model=4", pins={"params/*kernel": jax.sharding.PartitionSpec(None, "model")})
pinned_step = minka.parallelize(train_step.__wrapped__, method=pinned)
print(pinned_step.compile(state, {"x": x, "y": x}))

# The same step as a pipeline of two stages, which are cut where the model marks a boundary.
pipelined = minka.parallelize(train_step.__wrapped__, method=minka.Pipeline(num_micro_batches=4, stages=2))
state, loss = pipelined(state, {"x": x, "y": x})
print(pipelined.plan)
print(f"loss {float(loss):.4f}")

# The same pipeline for hosts that are not at hand: four V100s and four GTX 1080 Ti. Nothing runs.
there = pipelined.lower(state, {"x": x, "y": x}).plan("v100:1x4,1080ti:1x4")
print(there)
print(there.explain(stage=0))
