"""Training steps of flax models whose layers are equal, one after the other or as one loop over stacked weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Program(NamedTuple):
    """step: of (state, batch), which returns (state, loss). state, batch: arrays; examples count along dimension 0."""

    step: Callable
    state: Any
    batch: Any


class Layers(nn.Module):
    """layer: takes (x, None) and returns (x, None)."""

    layer: Callable[[], nn.Module]
    num_layers: int
    scanned: bool

    @nn.compact
    def __call__(self, x):
        if self.scanned:
            return nn.scan(lambda module, x, _: module(x, None), variable_axes={"params": 0}, split_rngs={"params": True},
                           length=self.num_layers)(self.layer(), x, None)[0]
        for _ in range(self.num_layers):
            x, _ = self.layer()(x, None)
        return x


class TransformerLayer(nn.Module):
    num_heads: int
    causal: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, _):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2])) if self.causal else None
        y = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(self.num_heads, dtype=self.dtype)(y, mask=mask)
        y = nn.gelu(nn.Dense(4 * x.shape[-1], dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)))
        return x + nn.Dense(x.shape[-1], dtype=self.dtype)(y), None


class MixerLayer(nn.Module):
    """MLPs over the patches and over the channels (arXiv:2105.01601)."""

    @nn.compact
    def __call__(self, x, _):
        def mlp(x, width):
            return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(width)(x)))

        x = x + mlp(nn.LayerNorm()(x).swapaxes(1, 2), x.shape[-1]).swapaxes(1, 2)
        return x + mlp(nn.LayerNorm()(x), 4 * x.shape[-1]), None


class ResidualLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        y = nn.Conv(x.shape[-1], (3, 3))(nn.relu(nn.GroupNorm(8)(x)))
        return x + nn.Conv(x.shape[-1], (3, 3))(nn.relu(nn.GroupNorm(8)(y))), None


class DenseLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.relu(nn.Dense(x.shape[-1])(x)), None


class LanguageModel(nn.Module):
    layers: nn.Module
    hidden: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens):
        x = self.layers(nn.Embed(256, self.hidden, dtype=self.dtype)(tokens))
        return nn.Dense(256, use_bias=False, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)).astype(jnp.float32)


class PatchClassifier(nn.Module):
    layers: nn.Module
    hidden: int

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(self.hidden, (4, 4), (4, 4))(images)
        x = self.layers(x.reshape(x.shape[0], -1, self.hidden))
        return nn.Dense(10)(nn.LayerNorm()(x).mean(axis=1))


class ImageClassifier(nn.Module):
    layers: nn.Module
    channels: int

    @nn.compact
    def __call__(self, images):
        x = self.layers(nn.Conv(self.channels, (3, 3), (2, 2))(images))
        return nn.Dense(10)(nn.relu(x).mean(axis=(1, 2)))


def step_of(model: nn.Module, optimizer: optax.GradientTransformation) -> Callable:
    """The step of a Program whose state is {"params", "moments"} and whose batch is {"x", "y"}, see training."""

    def step(state, batch):
        def loss_of(params):
            logits = model.apply({"params": params}, batch["x"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, moments = optimizer.update(gradients, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, loss

    return step


def training(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Program:
    """y: labels along all but the last dimension of what the model returns."""
    optimizer = optax.adamw(1e-3)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0), x)["params"])
    state = {"params": params, "moments": jax.tree.map(np.asarray, optimizer.init(params))}
    return Program(step_of(model, optimizer), state, {"x": x, "y": y})


def labels(limit: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(limit, size=shape, dtype=np.int32)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def language(scanned: bool, hidden: int, num_layers: int, batch: int, sequence: int, **options) -> Program:
    layers = Layers(lambda: TransformerLayer(8, causal=True, **options), num_layers, scanned)
    text = labels(256, batch, sequence + 1)
    return training(LanguageModel(layers, hidden, **options), text[:, :-1], text[:, 1:])


def patches(scanned: bool, layer: Callable[[], nn.Module]) -> Program:
    return training(PatchClassifier(Layers(layer, 4, scanned), 192), floats(64, 32, 32, 3), labels(10, 64))


# By name, functions of whether the layers are one loop.
MODELS = {
    "transformer": lambda scanned: language(scanned, 256, 4, 16, 128),
    "transformer, wide": lambda scanned: language(scanned, 512, 3, 8, 64),
    "vision transformer": lambda scanned: patches(scanned, lambda: TransformerLayer(6)),
    "mixer": lambda scanned: patches(scanned, MixerLayer),
    "residual convolutions": lambda scanned: training(ImageClassifier(Layers(ResidualLayer, 4, scanned), 64), floats(64, 32, 32, 3),
                                                      labels(10, 64)),
    "mlp": lambda scanned: training(Layers(DenseLayer, 4, scanned), floats(512, 1024), labels(1024, 512)),
}
