"""Exports training steps of flax models, larger than the tests' and of every shape that users write, for prediction_benchmark.

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


def classifier(model, optimizer, batch, size):
    images, labels = tests.shaped(batch, size, size, 3), tests.shaped(batch, dtype=jnp.int32)

    def loss_of(params, images, labels):
        logits = model.apply({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return tests.Exported(tests.training_step(optimizer, loss_of, returns_loss=True),
                          tests.initial_state(model, optimizer, images),
                          {"images": images, "labels": labels}, None, ())


def modules():
    adamw = optax.adamw(1e-3)
    language = functools.partial(tests.next_token, optimizer=adamw)
    half = jnp.bfloat16
    return {
        "transformer": language(Transformer(256, 4), batch=16, sequence=128),
        "transformer_small": language(Transformer(128, 2, 4), batch=16, sequence=64),
        "transformer_wide": language(Transformer(768, 2), batch=8, sequence=64),
        "transformer_bf16": language(Transformer(256, 2, dtype=half), batch=16, sequence=128),
        "transformer_dropout": tests.gpt(16, 128, 256, 8, 2, 256),
        "transformer_checkpointed": language(Transformer(256, 4, checkpointed=True), batch=16, sequence=128),
        "transformer_scanned": language(Transformer(256, 4, scanned=True), batch=16, sequence=128),
        "transformer_scanned_bf16": language(Transformer(256, 4, scanned=True, dtype=half), batch=16, sequence=128),
        "transformer_scanned_checkpointed": language(
            Transformer(256, 4, scanned=True, checkpointed=True), batch=16, sequence=128),
        "resnet": tests.resnet(64, 32, (32, 64, 128), 10),
        "resnet_small": tests.resnet(16, 32, (16, 32), 8),
        "convolutions": classifier(Convolutions((32, 64, 128)), adamw, 64, 32),
        "convolutions_bf16": classifier(Convolutions((32, 64), dtype=half), adamw, 64, 32),
        "lstm": language(tests.Lstm(256, 256), batch=64, sequence=64),
        "lstm_wide": language(tests.Lstm(768, 256), batch=32, sequence=32),
        "moe": language(tests.MoeTransformer(256, 8, 8, 256), batch=16, sequence=128, balance=0.01),
        "mlp": tests.mlp(512, 1024, 4, optax.adam(1e-3), returns_loss=True),
        "embedding": tests.embedding(256, 32, 20000, 256),
    }


def main():
    jax.config.update("jax_platforms", "cpu")
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    index = {}
    for name, exported in modules().items():
        lowered = tests.lower(exported)
        (out / f"{name}.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
        inputs = tests.describe(name, exported, lowered)["batch_inputs"]
        index[name] = [str(described["parameter"]) for described in inputs.values()]
        print(name, flush=True)
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
