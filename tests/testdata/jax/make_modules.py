"""Exports the training steps that minka's tests read, as HloModuleProto files made by JAX.

Run by hand in an environment with the versions of requirements.txt; it rewrites every .pb file and index.json beside it:

    python tests/testdata/jax/make_modules.py

The state of each step is donated, so the modules' input-output aliases say which result is the new value of which
parameter. The models of the acceptance rows follow Alpa's tests (OSDI'22): Dense + relu with Adam, and post-LN BERT layers
with a fused query-value-key projection and dropout.
"""

import collections
import json
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

OUT = pathlib.Path(__file__).resolve().parent
# state is None for a function without one; batch: name -> shape, all split along dimension 0; key: shape or None.
Exported = collections.namedtuple("Exported", "step state batch key rows")


class Mlp(nn.Module):
    """num_layers times Dense with relu between them; input, hidden and output size are equal."""

    hidden: int
    num_layers: int
    remat: bool = False

    @nn.compact
    def __call__(self, x):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        for layer in range(self.num_layers):
            x = dense(self.hidden, name=f"dense_{layer}")(x)
            if layer + 1 < self.num_layers:
                x = nn.relu(x)
        return x


class ResidualLayer(nn.Module):
    """Dense and tanh beside a residual; returns what nn.scan wants."""

    @nn.compact
    def __call__(self, x, _):
        return x + nn.tanh(nn.Dense(x.shape[-1], name="dense")(x)), None


class ScannedMlp(nn.Module):
    """num_layers residual layers as one loop over stacked weights, and a Dense behind them."""

    num_layers: int

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(ResidualLayer, variable_axes={"params": 0}, split_rngs={"params": True},
                         length=self.num_layers)
        return nn.Dense(x.shape[-1], name="head")(layers(name="layers")(x, None)[0])


class BertLayer(nn.Module):
    """Self-attention and MLP, each followed by dropout, residual and LayerNorm."""

    hidden: int
    num_heads: int
    dropout: float = 0.1

    @nn.compact
    def __call__(self, x, mask):
        drop = lambda v: nn.Dropout(self.dropout, deterministic=False)(v)
        qvk = nn.Dense(3 * self.hidden, name="qvk")(x).reshape(x.shape[:-1] + (self.hidden, 3))
        heads = x.shape[:-1] + (self.num_heads, self.hidden // self.num_heads)
        query, value, key = (part.reshape(heads) for part in jnp.split(qvk, 3, axis=-1))
        bias = jnp.where(mask[:, None, None, :] > 0, 0.0, -1e10).astype(x.dtype)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query / jnp.sqrt(heads[-1]).astype(x.dtype), key)
        attention = jnp.einsum("bhqk,bkhd->bqhd", drop(nn.softmax(scores + bias)), value)
        attention = nn.Dense(self.hidden, name="attention_output")(attention.reshape(x.shape))
        x = nn.LayerNorm(name="attention_norm")(drop(attention) + x)
        h = nn.gelu(nn.Dense(4 * self.hidden, name="intermediate")(x), approximate=False)
        h = nn.Dense(self.hidden, name="output")(h)
        return nn.LayerNorm(name="output_norm")(drop(h) + x)


class BertLayers(nn.Module):
    hidden: int
    num_heads: int
    num_layers: int
    remat: bool = False

    @nn.compact
    def __call__(self, x, mask):
        layer_type = nn.remat(BertLayer) if self.remat else BertLayer
        for layer in range(self.num_layers):
            x = layer_type(self.hidden, self.num_heads, name=f"layer_{layer}")(x, mask)
        return x


class BertMaskedLanguageModel(nn.Module):
    """Embeddings looked up by one-hot dots, BERT layers, a head tied to the word embedding."""

    hidden: int
    num_heads: int
    num_layers: int
    vocabulary: int
    sequence: int
    remat: bool = False

    @nn.compact
    def __call__(self, input_ids, mask, type_ids, position_ids):
        def table(name, rows):
            return self.param(name, nn.initializers.normal(0.02), (rows, self.hidden))

        words = table("word_embedding", self.vocabulary)
        positions = table("position_embedding", self.sequence)
        types = table("type_embedding", 2)
        x = sum(jax.nn.one_hot(ids, t.shape[0]) @ t
                for ids, t in ((input_ids, words), (position_ids, positions), (type_ids, types)))
        x = nn.LayerNorm(name="embedding_norm")(x)
        x = nn.Dropout(0.1, deterministic=False)(x)
        x = BertLayers(self.hidden, self.num_heads, self.num_layers, self.remat,
                       name="encoder")(x, mask)
        x = nn.gelu(nn.Dense(self.hidden, name="head")(x), approximate=False)
        x = nn.LayerNorm(name="head_norm")(x)
        return x @ words.T + self.param("head_bias", nn.initializers.zeros, (self.vocabulary,))


class Gpt(nn.Module):
    """Causal pre-LN transformer over bytes with learned positions and an untied head."""

    hidden: int
    num_heads: int
    num_layers: int
    vocabulary: int
    sequence: int
    dropout: float = 0.1

    @nn.compact
    def __call__(self, tokens):
        drop = lambda v: nn.Dropout(self.dropout, deterministic=False)(v)
        x = nn.Embed(self.vocabulary, self.hidden, name="token_embedding")(tokens)
        x = x + self.param("position_embedding", nn.initializers.normal(0.02),
                           (self.sequence, self.hidden))
        x = drop(x)
        causal = nn.make_causal_mask(tokens)
        for layer in range(self.num_layers):
            y = nn.LayerNorm(name=f"attention_norm_{layer}")(x)
            y = nn.SelfAttention(self.num_heads, name=f"attention_{layer}")(y, mask=causal)
            x = x + drop(y)
            y = nn.LayerNorm(name=f"mlp_norm_{layer}")(x)
            y = nn.gelu(nn.Dense(4 * self.hidden, name=f"up_{layer}")(y))
            x = x + drop(nn.Dense(self.hidden, name=f"down_{layer}")(y))
        x = nn.LayerNorm(name="final_norm")(x)
        return nn.Dense(self.vocabulary, use_bias=False, name="head")(x)


def masked_cross_entropy(logits, labels):
    """Averaged over the labels above 0, as Alpa's tests do."""
    target = jax.nn.one_hot(labels, logits.shape[-1])
    losses = -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
    counted = labels > 0
    return jnp.sum(jnp.where(counted, losses, 0.0)) / jnp.sum(counted)


class ResNet(nn.Module):
    """Residual blocks of 3x3 convolutions with batch norm, the later ones at half the resolution."""

    channels: tuple
    num_classes: int

    @nn.compact
    def __call__(self, images):
        norm = lambda name: nn.BatchNorm(use_running_average=False, momentum=0.9, name=name)
        x = nn.Conv(self.channels[0], (3, 3), use_bias=False, name="stem")(images)
        x = nn.max_pool(nn.relu(norm("stem_norm")(x)), (3, 3), (2, 2), "SAME")
        for block, channels in enumerate(self.channels):
            strides = (1, 1) if block == 0 else (2, 2)
            y = nn.Conv(channels, (3, 3), strides, use_bias=False, name=f"first_{block}")(x)
            y = nn.relu(norm(f"first_norm_{block}")(y))
            y = nn.Conv(channels, (3, 3), use_bias=False, name=f"second_{block}")(y)
            y = norm(f"second_norm_{block}")(y)
            if x.shape != y.shape:
                x = nn.Conv(channels, (1, 1), strides, use_bias=False, name=f"shortcut_{block}")(x)
            x = nn.relu(x + y)
        return nn.Dense(self.num_classes, name="head")(x.mean(axis=(1, 2)))


class Lstm(nn.Module):
    """Embedding, one LSTM scanned over the sequence, and a head."""

    hidden: int
    vocabulary: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocabulary, self.hidden, name="embedding")(tokens)
        x = nn.RNN(nn.OptimizedLSTMCell(self.hidden), name="lstm")(x)
        return nn.Dense(self.vocabulary, name="head")(x)


class MixtureOfExperts(nn.Module):
    """Feed-forward experts behind top-2 gating with a capacity, as in GShard (arXiv:2006.16668)."""

    hidden: int
    num_experts: int
    capacity: int

    @nn.compact
    def __call__(self, x):
        gates = nn.softmax(nn.Dense(self.num_experts, use_bias=False, name="gate")(x))
        weights, experts = jax.lax.top_k(gates, 2)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        chosen = jax.nn.one_hot(experts, self.num_experts)
        # All first choices come before the second ones in an expert's queue.
        queue = jnp.cumsum(chosen.swapaxes(1, 2).reshape(x.shape[0], -1, self.num_experts), axis=1)
        place = (queue.reshape(x.shape[0], 2, -1, self.num_experts).swapaxes(1, 2) - 1) * chosen
        slot = jax.nn.one_hot(place.sum(axis=-1).astype(jnp.int32), self.capacity)
        dispatch = jnp.einsum("gske,gskc->gsec", chosen, slot)
        combine = jnp.einsum("gsk,gske,gskc->gsec", weights, chosen, slot)
        up = self.param("up", nn.initializers.lecun_normal(),
                        (self.num_experts, self.hidden, 4 * self.hidden))
        down = self.param("down", nn.initializers.lecun_normal(),
                          (self.num_experts, 4 * self.hidden, self.hidden))
        y = jnp.einsum("gsec,gsh->egch", dispatch, x)
        y = jnp.einsum("egcf,efh->egch", nn.gelu(jnp.einsum("egch,ehf->egcf", y, up)), down)
        self.sow("losses", "balance", jnp.mean(gates, axis=1) * jnp.mean(chosen[:, :, 0], axis=1))
        return jnp.einsum("gsec,egch->gsh", combine, y)


class MoeTransformer(nn.Module):
    hidden: int
    num_heads: int
    num_experts: int
    vocabulary: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocabulary, self.hidden, name="embedding")(tokens)
        y = nn.LayerNorm(name="attention_norm")(x)
        x = x + nn.SelfAttention(self.num_heads, name="attention")(y, mask=nn.make_causal_mask(tokens))
        y = nn.LayerNorm(name="moe_norm")(x)
        capacity = 2 * tokens.shape[1] // self.num_experts
        x = x + MixtureOfExperts(self.hidden, self.num_experts, capacity, name="moe")(y)
        return nn.Dense(self.vocabulary, use_bias=False, name="head")(nn.LayerNorm(name="norm")(x))


def shaped(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


KEY = shaped(2, dtype=jnp.uint32)


def initial_state(model, optimizer, *inputs):
    """Shapes of the parameters and the optimizer's state; nothing is computed."""
    def init(*args):
        key = jax.random.PRNGKey(0)
        params = model.init({"params": key, "dropout": key}, *args)["params"]
        return {"params": params, "optimizer": optimizer.init(params)}
    return jax.eval_shape(init, *inputs)


def training_step(optimizer, loss_of, returns_loss):
    """(state, batch, key if there is one) -> new state, or (new state, loss)."""
    def step(state, batch, key=None):
        keys = () if key is None else (key,)
        loss, gradients = jax.value_and_grad(loss_of)(state["params"], *keys, **batch)
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
        new_state = {"params": optax.apply_updates(state["params"], updates),
                     "optimizer": optimizer_state}
        return (new_state, loss) if returns_loss else new_state
    return step


def mlp(batch, hidden, num_layers, optimizer=None, remat=False, returns_loss=False, rows=()):
    return regression(Mlp(hidden, num_layers, remat), optimizer or optax.adam(1e-2),
                      shaped(batch, hidden), returns_loss, rows)


def regression(model, optimizer, x, returns_loss, rows=()):
    """Of targets that are shaped as the inputs."""

    def loss_of(params, x, y):
        return jnp.mean((model.apply({"params": params}, x) - y) ** 2)

    return Exported(training_step(optimizer, loss_of, returns_loss),
                    initial_state(model, optimizer, x),
                    {"x": x, "y": x}, None, rows)


def bert_layers(batch, sequence, hidden, num_heads, num_layers, remat=False, rows=()):
    model = BertLayers(hidden, num_heads, num_layers, remat)
    optimizer = optax.adam(1e-2)
    x, mask = shaped(batch, sequence, hidden), shaped(batch, sequence, dtype=jnp.int32)

    def loss_of(params, key, x, mask, y):
        out = model.apply({"params": params}, x, mask, rngs={"dropout": key})
        return jnp.mean((out - y) ** 2)

    return Exported(training_step(optimizer, loss_of, returns_loss=False),
                    initial_state(model, optimizer, x, mask),
                    {"x": x, "mask": mask, "y": x}, KEY, rows)


def bert_mlm(batch, sequence, hidden, num_heads, num_layers, vocabulary, returns_loss, remat=False,
             rows=()):
    model = BertMaskedLanguageModel(hidden, num_heads, num_layers, vocabulary, sequence, remat)
    optimizer = optax.adam(1e-2)
    ids = shaped(batch, sequence, dtype=jnp.int32)

    def loss_of(params, key, input_ids, mask, type_ids, position_ids, labels):
        logits = model.apply({"params": params}, input_ids, mask, type_ids, position_ids,
                             rngs={"dropout": key})
        return 0.1234 * masked_cross_entropy(logits, labels)

    batch_inputs = {name: ids
                    for name in ("input_ids", "mask", "type_ids", "position_ids", "labels")}
    return Exported(training_step(optimizer, loss_of, returns_loss),
                    initial_state(model, optimizer, ids, ids, ids, ids),
                    batch_inputs, KEY, rows)


def gpt(batch, sequence, hidden, num_heads, num_layers, vocabulary, clip=None):
    model = Gpt(hidden, num_heads, num_layers, vocabulary, sequence)
    optimizer = optax.adamw(1e-3, weight_decay=0.01)
    if clip is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(clip), optimizer)
    tokens = shaped(batch, sequence, dtype=jnp.int32)

    def loss_of(params, key, tokens, labels):
        logits = model.apply({"params": params}, tokens, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return Exported(training_step(optimizer, loss_of, returns_loss=True),
                    initial_state(model, optimizer, tokens),
                    {"tokens": tokens, "labels": tokens}, KEY, ())


def resnet(batch, size, channels, num_classes):
    """The running statistics of batch norm are state beside the parameters."""
    model = ResNet(channels, num_classes)
    optimizer = optax.sgd(0.05, momentum=0.9, nesterov=True)
    images, labels = shaped(batch, size, size, 3), shaped(batch, dtype=jnp.int32)

    def init(images):
        variables = model.init(jax.random.PRNGKey(0), images)
        return {**variables, "optimizer": optimizer.init(variables["params"])}

    def loss_of(params, statistics, images, labels):
        logits, updated = model.apply({"params": params, "batch_stats": statistics}, images,
                                      mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, updated["batch_stats"]

    def step(state, batch):
        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            state["params"], state["batch_stats"], **batch)
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates),
                "batch_stats": statistics, "optimizer": optimizer_state}, loss

    return Exported(step, jax.eval_shape(init, images),
                    {"images": images, "labels": labels}, None, ())


def next_token(model, optimizer, batch, sequence, balance=0.0):
    """A language model without dropout; `balance` weighs the sum of what the model sows as losses."""
    tokens = shaped(batch, sequence, dtype=jnp.int32)

    def loss_of(params, tokens, labels):
        logits, sown = model.apply({"params": params}, tokens, mutable=["losses"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss + balance * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(sown))

    return Exported(training_step(optimizer, loss_of, returns_loss=True),
                    initial_state(model, optimizer, tokens),
                    {"tokens": tokens, "labels": tokens}, None, ())


def initial_values(batch, hidden, num_layers):
    """A function of the key alone that makes a whole train state: step counter, weights, moments."""
    model, x = Mlp(hidden, num_layers), shaped(batch, hidden)

    def create(batch, key):
        params = model.init(jax.random.wrap_key_data(key), jnp.ones(x.shape))["params"]
        return {"step": 0, "params": params, "optimizer": optax.adam(1e-2).init(params)}

    return Exported(create, None, {}, KEY, ("mlp/weight_init",))


def embedding(batch, sequence, vocabulary, hidden):
    """A look-up by gather and its gradient by scatter, with plain gradient descent."""
    optimizer = optax.sgd(0.1)
    state = jax.eval_shape(lambda t: {"params": {"table": t}, "optimizer": optimizer.init(t)},
                           shaped(vocabulary, hidden))

    def loss_of(params, ids, y):
        return jnp.mean((params["table"][ids] - y) ** 2)

    return Exported(training_step(optimizer, loss_of, returns_loss=True), state,
                    {"ids": shaped(batch, sequence, dtype=jnp.int32),
                     "y": shaped(batch, sequence, hidden)}, None, ())


def random_bits(implementation, batch, hidden):
    """A dropout mask, uniform numbers and normal numbers from one key, added to the input."""
    words = {"threefry2x32": 2, "rbg": 4}[implementation]

    def step(batch, key):
        x = batch["x"]
        keys = jax.random.split(jax.random.wrap_key_data(key, impl=implementation), 3)
        kept = jax.random.bernoulli(keys[0], 0.9, x.shape)
        uniform = jax.random.uniform(keys[1], x.shape)
        normal = jax.random.normal(keys[2], x.shape)
        return jnp.where(kept, x / 0.9, 0.0), x + uniform, x + normal

    return Exported(step, None, {"x": shaped(batch, hidden)}, shaped(words, dtype=jnp.uint32), ())


def modules():
    """Name -> what to export. A name says model, batch, and what sets it apart."""
    sgd = optax.sgd(1e-2, momentum=0.9)
    return {
        # Acceptance rows.
        "mlp_batch256_hidden32": mlp(256, 32, 6, rows=("mlp/data_parallel", "mlp/2d_mesh")),
        "mlp_batch32_hidden256": mlp(
            32, 256, 6,
            rows=("mlp/model_parallel", "mlp/force_data_parallel", "mlp/force_batch_dim")),
        "bert_layers_batch64_hidden32": bert_layers(
            64, 64, 32, 8, 2, rows=("bert/layer_data_parallel", "bert/layer_force_batch_dim")),
        "bert_layers_batch8_hidden128": bert_layers(
            8, 8, 128, 8, 2, rows=("bert/layer_model_parallel",)),
        "bert_layers_batch8_hidden128_remat": bert_layers(
            8, 8, 128, 8, 2, remat=True, rows=("bert/layer_model_parallel_remat",)),
        "bert_mlm_batch32_hidden16": bert_mlm(
            32, 32, 16, 4, 2, 128, returns_loss=False, rows=("bert/mlm_data_parallel",)),
        # Small steps to import, run and compare.
        "small_mlp_sgd": mlp(16, 8, 2, sgd, returns_loss=True),
        "small_mlp_adam_remat": mlp(16, 8, 4, remat=True, returns_loss=True),
        "small_gpt_adamw": gpt(8, 16, 32, 4, 2, 64),
        "small_bert_mlm": bert_mlm(8, 8, 16, 4, 1, 32, returns_loss=True),
        "small_embedding": embedding(8, 4, 32, 16),
        "small_gpt_clipped": gpt(16, 32, 64, 4, 1, 128, clip=1.0),
        "small_resnet": resnet(16, 32, (16, 32), 8),
        "small_lstm": next_token(Lstm(128, 256), optax.adam(1e-3), 32, 16),
        "small_moe": next_token(MoeTransformer(64, 4, 8, 128), optax.adamw(1e-3), 16, 32,
                                balance=0.01),
        "small_random_threefry": random_bits("threefry2x32", 8, 16),
        "small_random_bit_generator": random_bits("rbg", 8, 16),
        # Behind the others, whose files would change: JAX numbers names over all modules.
        "bert_layers_batch1_hidden32": bert_layers(
            1, 64, 32, 8, 2, rows=("bert/layer_force_batch_dim_batch1",)),
        "mlp_batch256_hidden32_adafactor": mlp(
            256, 32, 6, optax.adafactor(1e-2, min_dim_size_to_factor=4),
            rows=("mlp/data_parallel_adafactor",)),
        "mlp_hidden16_initial_values": initial_values(64, 16, 2),
        "small_bert_mlm_two_layers": bert_mlm(8, 8, 16, 4, 2, 32, returns_loss=True),
        "small_bert_mlm_two_layers_remat": bert_mlm(8, 8, 16, 4, 2, 32, returns_loss=True,
                                                    remat=True),
        "small_mlp_scanned": regression(
            ScannedMlp(4), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
            shaped(16, 32), returns_loss=True),
    }


def lower(exported):
    key = () if exported.key is None else (exported.key,)
    if exported.state is None:
        return jax.jit(exported.step, keep_unused=True).lower(exported.batch, *key)
    jitted = jax.jit(exported.step, donate_argnums=(0,), keep_unused=True)
    return jitted.lower(exported.state, exported.batch, *key)


def describe(name, exported, lowered):
    num_state = len(jax.tree.leaves(exported.state))
    batch = {input_name: {"parameter": num_state + i, "dims": list(shape.shape), "batch_dim": 0}
             for i, (input_name, shape) in enumerate(sorted(exported.batch.items()))}
    num_inputs = num_state + len(batch)
    return {
        "name": name,
        "acceptance_rows": list(exported.rows),
        "num_parameters": num_inputs + (exported.key is not None),
        "num_results": len(jax.tree.leaves(lowered.out_info)),
        "num_state": num_state,
        "batch_inputs": batch,
        "key_parameter": None if exported.key is None else num_inputs,
    }


def main():
    # Where the script lies is nobody's business and would change the files from one machine to the next.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*")
    jax.config.update("jax_traceback_in_locations_limit", 0)
    jax.config.update("jax_platforms", "cpu")
    index = []
    for name, exported in modules().items():
        lowered = lower(exported)
        proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
        (OUT / f"{name}.pb").write_bytes(proto)
        index.append(describe(name, exported, lowered))
        print(f"{name}: {len(proto)} bytes")
    (OUT / "index.json").write_text(json.dumps({"modules": index}, indent=1) + "\n")


if __name__ == "__main__":
    main()
