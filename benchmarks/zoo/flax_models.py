"""Models made of flax's own layers, linen's and nnx's."""

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from program import OPTIMIZERS, Program, cross_entropy, images, key, tokens, training


class EncoderBlock(nn.Module):
    features: int = 64
    dropout: float = 0.1

    @nn.compact
    def __call__(self, x, _=None):
        y = nn.MultiHeadDotProductAttention(4, dropout_rate=self.dropout, deterministic=False)(nn.LayerNorm()(x))
        x = x + nn.Dropout(self.dropout, deterministic=False)(y)
        y = nn.Dense(self.features)(nn.gelu(nn.Dense(2 * self.features)(nn.RMSNorm()(x))))
        return x + y, None


class LanguageModel(nn.Module):
    """Blocks one by one, or scanned over stacked weights; rematerialised or not."""

    num_layers: int = 4
    scanned: bool = False
    remat: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.Embed(96, 64)(x)
        block = nn.remat(EncoderBlock, prevent_cse=not self.scanned) if self.remat else EncoderBlock
        if self.scanned:
            layers = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, length=self.num_layers)
            x, _ = layers()(x, None)
        else:
            for _ in range(self.num_layers):
                x, _ = block()(x)
        return nn.Dense(96)(nn.LayerNorm()(x))


class Residual(nn.Module):
    """Convolutions with batch norm and a projection, as of a ResNet."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(16, (3, 3), use_bias=False)(x)
        for features, strides in ((16, 1), (32, 2), (64, 2)):
            y = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(features, (3, 3), strides, use_bias=False)(x)))
            y = nn.BatchNorm(use_running_average=False)(nn.Conv(features, (3, 3), use_bias=False)(y))
            x = nn.relu(y + nn.Conv(features, (1, 1), strides, use_bias=False)(x))
        return nn.Dense(10)(nn.avg_pool(x, (4, 4), (4, 4)).reshape(x.shape[0], -1))


class UNet(nn.Module):
    """Predicts the noise of noisy images: group norms, attention in the middle, transposed convolutions up, skips."""

    @nn.compact
    def __call__(self, x, time):
        embedded = nn.Dense(32)(nn.swish(nn.Dense(32)(jnp.sin(time[:, None] * 2.0 ** jnp.arange(8)))))
        x = nn.Conv(16, (3, 3))(x)
        skips = []
        for features in (16, 32):
            x = self.block(x, embedded, features)
            skips.append(x)
            x = nn.Conv(features, (3, 3), 2)(x)
        rows = x.reshape(x.shape[0], -1, x.shape[-1])
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(rows)).reshape(x.shape)
        for features in (32, 16):
            x = nn.ConvTranspose(features, (2, 2), (2, 2))(x)
            x = self.block(jnp.concatenate([x, skips.pop()], -1), embedded, features)
        return nn.Conv(3, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))

    def block(self, x, embedded, features):
        y = nn.Conv(features, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))
        y = y + nn.Dense(features)(embedded)[:, None, None]
        y = nn.Conv(features, (3, 3))(nn.swish(nn.GroupNorm(8)(y)))
        return y + nn.Conv(features, (1, 1))(x)


class Recurrent(nn.Module):
    """Both ways over time, then one way."""

    cell: Any = nn.OptimizedLSTMCell

    @nn.compact
    def __call__(self, x):
        x = nn.Bidirectional(nn.RNN(self.cell(24)), nn.RNN(self.cell(24)))(nn.Embed(96, 16)(x))
        return nn.Dense(96)(nn.RNN(nn.SimpleCell(32))(x))


class ConvolutionalRecurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.ConvLSTMCell(8, (3, 3)))(x)
        return nn.Dense(10)(nn.max_pool(x[:, -1], (2, 2), (2, 2)).reshape(x.shape[0], -1))


def of_linen(model: nn.Module, optimizer: str, x: np.ndarray, y: np.ndarray) -> Program:
    variables = dict(model.init({"params": key(), "dropout": key()}, x))
    params = variables.pop("params")

    def loss_of(params, rest, batch):
        now, next_key = jax.random.split(rest["key"])
        out, changed = model.apply({"params": params, **rest["collections"]}, batch["x"], rngs={"dropout": now},
                                   mutable=list(rest["collections"]))
        return cross_entropy(out, batch["y"]), {"collections": changed, "key": next_key}

    return training(loss_of, params, {"collections": variables, "key": jax.random.PRNGKey(7)}, OPTIMIZERS[optimizer](),
                    {"x": x, "y": y})


def diffusion() -> Program:
    model, x = UNet(), images(16, 16, 16, 3)
    params = model.init(key(), x, x[:, 0, 0, 0])

    def loss_of(params, rest, batch):
        now, next_key = jax.random.split(rest)
        time, noise = jax.random.uniform(now, (x.shape[0],)), jax.random.normal(now, x.shape)
        signal = jnp.cos(time)[:, None, None, None]
        noisy = signal * batch["x"] + jnp.sqrt(1 - signal ** 2) * noise
        return jnp.mean((model.apply(params, noisy, time) - noise) ** 2), next_key

    return training(loss_of, params, jax.random.PRNGKey(3), OPTIMIZERS["adamw"](), {"x": x})


class NnxClassifier(nnx.Module):
    """Patches, attention, and convolutions with batch norm, in nnx's layers."""

    def __init__(self, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, 32, (4, 4), strides=4, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 32, decode=False, rngs=rngs)
        self.layer_norm = nnx.LayerNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.up, self.down = nnx.Linear(32, 64, rngs=rngs), nnx.Linear(64, 32, rngs=rngs)
        self.head = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        x = x.reshape(x.shape[0], -1, 32)
        x = x + self.attention(self.layer_norm(x))
        x = x + self.dropout(self.down(nnx.gelu(self.up(x))))
        return self.head(x.mean(1))


# Before, flax copied in any case.
COPY = {"copy": True} if "copy" in inspect.signature(nnx.merge).parameters else {}


def of_nnx(model: nnx.Module, optimizer: str, x: np.ndarray, y: np.ndarray) -> Program:
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_of(params, rest, batch):
        model = nnx.merge(graph, params, rest, **COPY)
        loss = cross_entropy(model(batch["x"]), batch["y"])
        return loss, nnx.split(model, nnx.Param, ...)[2]

    return training(loss_of, params, rest, OPTIMIZERS[optimizer](), {"x": x, "y": y})


def language(optimizer: str, **options) -> Program:
    x = tokens(96, 16, 24)
    return of_linen(LanguageModel(**options), optimizer, x[:, :-1], x[:, 1:])


MODELS = {
    "flax transformer": lambda: language("clipped adamw"),
    "flax transformer, scanned": lambda: language("adamw", scanned=True),
    "flax transformer, remat": lambda: language("lion", remat=True),
    "flax transformer, scanned, remat": lambda: language("adafactor", scanned=True, remat=True),
    "flax resnet": lambda: of_linen(Residual(), "sgd", images(16, 16, 16, 3), tokens(10, 16)),
    "flax lstm": lambda: of_linen(Recurrent(), "adam", tokens(96, 16, 12), tokens(96, 16, 12)),
    "flax gru": lambda: of_linen(Recurrent(nn.GRUCell), "accumulated rmsprop", tokens(96, 16, 12), tokens(96, 16, 12)),
    "flax convolutional lstm": lambda: of_linen(ConvolutionalRecurrent(), "adafactor", images(16, 4, 8, 8, 3), tokens(10, 16)),
    "flax diffusion unet": diffusion,
    "nnx classifier": lambda: of_nnx(NnxClassifier(nnx.Rngs(0)), "clipped adamw", images(16, 16, 16, 3), tokens(10, 16)),
}
