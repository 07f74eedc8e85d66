"""Exports training steps of flax models, larger than the tests' and of every shape that users write, for prediction_benchmark
and step_time_benchmark.

    build/venv-jax/bin/python benchmarks/prediction/make_modules.py build/prediction_modules

writes NAME.pb for each and index.json: name -> numbers of the batch inputs, which are split along dimension 0. State is donated.
"""

import functools
import json
import pathlib
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

TESTDATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "testdata" / "jax"
sys.path.insert(0, str(TESTDATA))
import make_modules as tests  # noqa: E402  (the tests' models and how a step is made of one)


class Block(nn.Module):
    """Causal pre-LN transformer block; returns what nn.scan wants."""

    num_heads: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, _):
        hidden = x.shape[-1]
        y = nn.LayerNorm(dtype=self.dtype)(x)
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + nn.SelfAttention(self.num_heads, dtype=self.dtype)(y, mask=mask)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.gelu(nn.Dense(4 * hidden, dtype=self.dtype)(y))
        return x + nn.Dense(hidden, dtype=self.dtype)(y), None


class Transformer(nn.Module):
    """Over bytes; its layers one after the other or as one loop, recomputed in the backward pass or kept."""

    hidden: int
    num_layers: int
    num_heads: int = 8
    vocabulary: int = 256
    scanned: bool = False
    checkpointed: bool = False
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocabulary, self.hidden, dtype=self.dtype, name="embedding")(tokens)
        block = nn.remat(Block, prevent_cse=not self.scanned) if self.checkpointed else Block
        if self.scanned:
            layers = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.num_layers)
            x, _ = layers(self.num_heads, self.dtype, name="layers")(x, None)
        else:
            for layer in range(self.num_layers):
                x, _ = block(self.num_heads, self.dtype, name=f"layer_{layer}")(x, None)
        x = nn.LayerNorm(dtype=self.dtype, name="norm")(x)
        return nn.Dense(self.vocabulary, dtype=self.dtype, use_bias=False, name="head")(x).astype(jnp.float32)


class Convolutions(nn.Module):
    """3x3 convolutions with pooling between them and two dense layers, without normalisation."""

    channels: tuple
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, images):
        x = images.astype(self.dtype)
        for channels in self.channels:
            x = nn.relu(nn.Conv(channels, (3, 3), dtype=self.dtype)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(256, dtype=self.dtype)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10, dtype=self.dtype)(x).astype(jnp.float32)


class Gru(nn.Module):
    """Embedding, one GRU scanned over the sequence, and a head."""

    hidden: int
    vocabulary: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocabulary, self.hidden, name="embedding")(tokens)
        x = nn.RNN(nn.GRUCell(self.hidden), name="gru")(x)
        return nn.Dense(self.vocabulary, name="head")(x)


class VisionTransformer(nn.Module):
    """Patches of 4x4 by a strided convolution, learned positions, pre-LN blocks, mean over the patches."""

    hidden: int
    num_layers: int
    num_heads: int

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(self.hidden, (4, 4), (4, 4), name="patches")(images)
        x = x.reshape(x.shape[0], -1, self.hidden)
        x = x + self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        for layer in range(self.num_layers):
            y = nn.LayerNorm(name=f"attention_norm_{layer}")(x)
            x = x + nn.SelfAttention(self.num_heads, name=f"attention_{layer}")(y)
            y = nn.LayerNorm(name=f"mlp_norm_{layer}")(x)
            y = nn.gelu(nn.Dense(4 * self.hidden, name=f"up_{layer}")(y))
            x = x + nn.Dense(self.hidden, name=f"down_{layer}")(y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(x).mean(axis=1))


class Mixer(nn.Module):
    """MLPs over the patches and over the channels in turn (arXiv:2105.01601)."""

    hidden: int
    num_layers: int

    @nn.compact
    def __call__(self, images):
        def mlp(x, width, name):
            y = nn.gelu(nn.Dense(width, name=f"{name}_up")(x))
            return nn.Dense(x.shape[-1], name=f"{name}_down")(y)

        x = nn.Conv(self.hidden, (4, 4), (4, 4), name="patches")(images)
        x = x.reshape(x.shape[0], -1, self.hidden)
        for layer in range(self.num_layers):
            y = nn.LayerNorm(name=f"tokens_norm_{layer}")(x).swapaxes(1, 2)
            x = x + mlp(y, self.hidden, f"tokens_{layer}").swapaxes(1, 2)
            x = x + mlp(nn.LayerNorm(name=f"channels_norm_{layer}")(x), 4 * self.hidden, f"channels_{layer}")
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(x).mean(axis=1))


class SeparableConvolutions(nn.Module):
    """Depthwise 3x3 and pointwise convolutions with layer norm (arXiv:1704.04861)."""

    channels: tuple

    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(self.channels[0], (3, 3), name="stem")(images))
        for block, channels in enumerate(self.channels):
            strides = (1, 1) if block == 0 else (2, 2)
            y = nn.Conv(x.shape[-1], (3, 3), strides, feature_group_count=x.shape[-1], name=f"depthwise_{block}")(x)
            y = nn.Conv(channels, (1, 1), name=f"pointwise_{block}")(nn.relu(nn.LayerNorm(name=f"norm_{block}")(y)))
            x = nn.relu(y)
        return nn.Dense(10, name="head")(x.mean(axis=(1, 2)))


class Autoencoder(nn.Module):
    """Strided convolutions down to a code and transposed ones up again."""

    channels: tuple
    code: int

    @nn.compact
    def __call__(self, images):
        x = images
        for i, channels in enumerate(self.channels):
            x = nn.relu(nn.Conv(channels, (3, 3), (2, 2), name=f"down_{i}")(x))
        inner = x.shape
        x = nn.Dense(self.code, name="encode")(x.reshape(inner[0], -1))
        x = nn.relu(nn.Dense(inner[1] * inner[2] * inner[3], name="decode")(x)).reshape(inner)
        for i, channels in enumerate(reversed((images.shape[-1],) + self.channels[:-1])):
            x = nn.ConvTranspose(channels, (3, 3), (2, 2), name=f"up_{i}")(x if i == 0 else nn.relu(x))
        return x


def autoencoder(model, optimizer, batch, size):
    images = tests.shaped(batch, size, size, 3)

    def loss_of(params, images):
        return jnp.mean((model.apply({"params": params}, images) - images) ** 2)

    return tests.Exported(tests.training_step(optimizer, loss_of, returns_loss=True),
                          tests.initial_state(model, optimizer, images), {"images": images}, None, ())


def classifier(model, optimizer, batch, size):
    images, labels = tests.shaped(batch, size, size, 3), tests.shaped(batch, dtype=jnp.int32)

    def loss_of(params, images, labels):
        logits = model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return tests.Exported(tests.training_step(optimizer, loss_of, returns_loss=True),
                          tests.initial_state(model, optimizer, images),
                          {"images": images, "labels": labels}, None, ())


def modules():
    """Name -> function that makes it."""
    adamw = optax.adamw(1e-3)
    half = jnp.bfloat16

    def language(model, batch, sequence, **more):
        return functools.partial(tests.next_token, model, adamw, batch, sequence, **more)

    def images(model, batch=64, size=32):
        return functools.partial(classifier, model, adamw, batch, size)

    return {
        "transformer": language(Transformer(256, 4), 16, 128),
        "transformer_small": language(Transformer(128, 2, 4), 16, 64),
        "transformer_wide": language(Transformer(768, 2), 8, 64),
        "transformer_bf16": language(Transformer(256, 2, dtype=half), 16, 128),
        "transformer_dropout": functools.partial(tests.gpt, 16, 128, 256, 8, 2, 256),
        "transformer_checkpointed": language(Transformer(256, 4, checkpointed=True), 16, 128),
        "transformer_scanned": language(Transformer(256, 4, scanned=True), 16, 128),
        "transformer_scanned_bf16": language(Transformer(256, 4, scanned=True, dtype=half), 16, 128),
        "transformer_scanned_checkpointed": language(Transformer(256, 4, scanned=True, checkpointed=True), 16, 128),
        "resnet": functools.partial(tests.resnet, 64, 32, (32, 64, 128), 10),
        "resnet_small": functools.partial(tests.resnet, 16, 32, (16, 32), 8),
        "convolutions": images(Convolutions((32, 64, 128))),
        "convolutions_bf16": images(Convolutions((32, 64), dtype=half)),
        "convolutions_small": images(Convolutions((16, 32)), 32, 16),
        "separable_convolutions": images(SeparableConvolutions((32, 64, 128))),
        "autoencoder": functools.partial(autoencoder, Autoencoder((32, 64), 128), adamw, 64, 32),
        "vision_transformer": images(VisionTransformer(192, 3, 6)),
        "mixer": images(Mixer(192, 3)),
        "lstm": language(tests.Lstm(256, 256), 64, 64),
        "lstm_wide": language(tests.Lstm(768, 256), 32, 32),
        "gru": language(Gru(256, 256), 64, 32),
        "moe": language(tests.MoeTransformer(256, 8, 8, 256), 16, 128, balance=0.01),
        "mlp": functools.partial(tests.mlp, 512, 1024, 4, optax.adam(1e-3), returns_loss=True),
        "embedding": functools.partial(tests.embedding, 256, 32, 20000, 256),
    }


def main():
    jax.config.update("jax_platforms", "cpu")
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    index = {}
    for name, make in modules().items():
        exported = make()
        lowered = tests.lower(exported)
        (out / f"{name}.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
        inputs = tests.describe(name, exported, lowered)["batch_inputs"]
        index[name] = [str(described["parameter"]) for described in inputs.values()]
        print(name, flush=True)
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
