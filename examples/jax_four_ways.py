"""The same training step on one device, on eight of minka's runtime, as a pipeline there, and planned by minka and run by JAX.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/jax_four_ways.py
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import minka
import numpy as np
import optax
from flax.training.train_state import TrainState


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(256)(x))
        x = minka.mark_boundary(x)
        return nn.Dense(64)(nn.relu(nn.Dense(256)(x)))


def train_step(state, batch):
    def loss_fn(params):
        return jnp.mean((state.apply_fn({"params": params}, batch["x"]) - batch["y"]) ** 2)

    loss, grads = minka.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


minka.init(num_devices=8)
on_jax = minka.jit(train_step, method=minka.Shard())
ways = {
    "one device": jax.jit(train_step),
    "Shard": minka.parallelize(train_step, method=minka.Shard()),
    "Pipeline": minka.parallelize(train_step, method=minka.Pipeline(num_micro_batches=4, stages=2)),
    "minka.jit": on_jax,
}

model = Mlp()
x = np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32)
params = model.init(jax.random.key(0), x)["params"]
losses = {}
for name, step in ways.items():
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))
    for _ in range(10):
        state, loss = step(state, {"x": x, "y": x})
    losses[name] = float(loss)
    print(f"{name:12} loss {losses[name]:.6f}")
np.testing.assert_allclose(list(losses.values()), losses["one device"], rtol=1e-4)

print(state.params["Dense_0"]["kernel"].sharding)
(in_state, in_batch), (out_state, out_loss) = on_jax.jax_shardings()
print(in_batch["x"].spec, out_loss.spec)

# For 64 devices that are not there.
mesh = jax.sharding.AbstractMesh((8, 8), ("data", "model"))
planned = minka.jit(train_step, mesh=mesh, cluster="p3.16xlarge:8")
shape_of = jax.eval_shape(lambda: (state, {"x": x, "y": x}))
_, of_loss = planned.jax_shardings(*shape_of)[1]
program = planned.trace(*shape_of).lower(lowering_platforms=("cuda",)).as_text()
print(of_loss.mesh.shape, f"{len(program)} characters of StableHLO")
