"""minka.parallelize and minka.jit against jax.jit on one GPU.

    pip install .[jax] "jax[cuda13]" flax optax
    python benchmarks/python/gpu_benchmark.py --filter 'gpt*' --update

Training steps of flax models, in bf16 with weights in f32. Each model runs in a process of its own, in which the ways take turns of five
steps, each on the state that the one before left. --update writes its row into gpu_results.json and gpu_results.md; rows that were not run
stay. On a machine that does nothing else.
"""

import statistics
import time

import row_by_row

STEPS_PER_TURN = 5
LOSS_TOLERANCE = 2e-2  # relative, after the first turn, of steps in bf16
# JAX and minka's worker share the GPU's memory.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def models():
    """By name, functions that make a Program."""
    import flax.linen as nn
    import jax.numpy as jnp
    import jit_models as parts

    class Bottleneck(nn.Module):
        """A block of ResNet-50 (arXiv:1512.03385)."""

        width: int
        stride: int = 1

        @nn.compact
        def __call__(self, x):
            def normal(y):
                return nn.GroupNorm(32, dtype=jnp.bfloat16)(y)

            y = nn.relu(normal(nn.Conv(self.width, (1, 1), use_bias=False, dtype=jnp.bfloat16)(x)))
            y = nn.relu(normal(nn.Conv(self.width, (3, 3), self.stride, use_bias=False, dtype=jnp.bfloat16)(y)))
            y = normal(nn.Conv(4 * self.width, (1, 1), use_bias=False, dtype=jnp.bfloat16)(y))
            if x.shape != y.shape:
                x = normal(nn.Conv(4 * self.width, (1, 1), self.stride, use_bias=False, dtype=jnp.bfloat16)(x))
            return nn.relu(x + y)

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(64, (7, 7), (2, 2), dtype=jnp.bfloat16)(x)
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for group, blocks in enumerate((3, 4, 6, 3)):
                for block in range(blocks):
                    x = Bottleneck(64 << group, 2 if group > 0 and block == 0 else 1)(x)
            return nn.Dense(1000)(x.mean(axis=(1, 2)).astype(jnp.float32))

    class VisionTransformer(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(768, (16, 16), (16, 16), dtype=jnp.bfloat16)(x)
            x = x.reshape(x.shape[0], -1, x.shape[-1])
            x = parts.Layers(lambda: parts.TransformerLayer(12, dtype=jnp.bfloat16), 12, False)(x)
            return nn.Dense(1000)(x.mean(axis=1).astype(jnp.float32))

    def gpt(scanned):
        return parts.language(scanned, 1024, 12, 8, 1024, dtype=jnp.bfloat16)

    def images(model):
        return parts.training(model, parts.floats(64, 224, 224, 3), parts.labels(1000, 64))

    return {"gpt, 12 layers": lambda: gpt(False), "gpt, 12 layers, scanned": lambda: gpt(True),
            "vision transformer, base": lambda: images(VisionTransformer()), "resnet-50, group norms": lambda: images(ResNet())}


def measure(name, turns):
    """The row of a model, in this process."""
    import jax
    import minka
    minka.init(num_devices=1, cluster="local-cuda", progress=False)
    program = models()[name]()
    steps = {"runtime": minka.parallelize(program.step), "jit": minka.jit(program.step), "jax": jax.jit(program.step, donate_argnums=0)}
    states, losses = dict.fromkeys(steps, program.state), {}
    seconds, first = {way: [] for way in steps}, {}
    for turn in range(turns + 1):
        for way, step in steps.items():
            begin = time.perf_counter()
            for _ in range(STEPS_PER_TURN):
                states[way], loss = step(states[way], program.batch)
            last_loss = float(loss)
            losses.setdefault(way, last_loss)
            if isinstance(loss, jax.Array):
                jax.block_until_ready(states[way])
            if turn == 0:
                first[way] = round(time.perf_counter() - begin, 1)
            else:
                seconds[way].append((time.perf_counter() - begin) / STEPS_PER_TURN)
    planned = steps["runtime"].plan.json
    device = jax.devices()[0].device_kind
    minka.shutdown()
    medians = {way: 1e3 * statistics.median(times) for way, times in seconds.items()}
    return {"device": device, "milliseconds": {way: round(median, 2) for way, median in medians.items()}, "first_turn_seconds": first,
            "predicted_milliseconds": round(1e-3 * planned["step_time_us"], 2),
            "ratio": round(medians["runtime"] / medians["jax"], 3), "jit_ratio": round(medians["jit"] / medians["jax"], 3),
            "loss_difference": max(abs(loss - losses["jax"]) / abs(losses["jax"]) for loss in losses.values())}


def faults(row):
    return [] if row["loss_difference"] <= LOSS_TOLERANCE else [f"losses differ by {row['loss_difference']:.1e}"]


def page(rows):
    lines = ["# One GPU, from Python", "",
             "Made by `gpu_benchmark.py --update`. Training steps of flax models in bf16 with weights in f32; medians in ms of turns of",
             f"{STEPS_PER_TURN} steps. *runtime*: `minka.parallelize`; *jit*: `minka.jit`; *jax*: `jax.jit`. *predicted*: the plan's step time by the",
             "device's data sheet, nothing measured.", "",
             "| | device | runtime | jit | jax | runtime / jax | jit / jax | predicted | losses differ by |", "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        times = " | ".join(f"{row['milliseconds'][way]:.1f}" for way in ("runtime", "jit", "jax"))
        lines.append(f"| {row['name']} | {row['device']} | {times} | {row['ratio']:.2f} | {row['jit_ratio']:.2f} | "
                     f"{row['predicted_milliseconds']:.1f} | {row['loss_difference']:.1e} |")
    return "\n".join(lines) + "\n"


row_by_row.run(__file__, __doc__, "gpu_results", list(models()), measure, faults, page, ENVIRONMENT)
