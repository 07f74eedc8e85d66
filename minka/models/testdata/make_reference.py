"""Trains small models in JAX with 64-bit floats and writes reference.json: what minka's models must give.

Run by hand in an environment with jax and optax of tests/testdata/jax/requirements.txt:

    python minka/models/testdata/make_reference.py

Parameters start at 0.3 sin(1 + i + 0.37 j), i the number of the parameter in the step, j the row-major index of the
element; scales have 1 added. Integer inputs are (7 j + floor(j / 5) + 1) mod the number of values; float inputs
sin(0.61 j + n), n the number of the input. The same in models_test.cc.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

BATCH, SEQUENCE, VOCABULARY, HIDDEN, LAYERS, HEADS = 2, 5, 7, 6, 2, 3
STEPS = 4


def layer_norm(p, name, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-6) * p[name + "/scale"] + p[name + "/bias"]


def dense(p, name, x):
    return x @ p[name + "/kernel"] + p.get(name + "/bias", 0)


def attention(query, key, value, bias):
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores + bias), value)


def gpt_loss(p, tokens, labels):
    x = p["embedding/tokens/embedding"][tokens] + p["embedding/positions/embedding"]
    bias = jnp.where(jnp.tril(jnp.ones((SEQUENCE, SEQUENCE))) > 0, 0, -1e9)
    for i in range(LAYERS):
        name = f"layer_{i}/"
        y = layer_norm(p, name + "attention_norm", x)
        query, key, value = (
            jnp.einsum("bsh,hnd->bsnd", y, p[f"{name}attention/{part}/kernel"]) + p[f"{name}attention/{part}/bias"]
            for part in ("query", "key", "value"))
        context = attention(query, key, value, bias)
        x = x + jnp.einsum("bsnd,ndh->bsh", context, p[name + "attention/output/kernel"]) + p[name + "attention/output/bias"]
        y = jax.nn.gelu(dense(p, name + "mlp/up", layer_norm(p, name + "mlp_norm", x)), approximate=False)
        x = x + dense(p, name + "mlp/down", y)
    logits = dense(p, "head", layer_norm(p, "final_norm", x))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def bert_loss(p, input_ids, mask, type_ids, position_ids, labels):
    x = (p["embedding/words/embedding"][input_ids] + p["embedding/positions/embedding"][position_ids]
         + p["embedding/types/embedding"][type_ids])
    x = layer_norm(p, "embedding/norm", x)
    bias = jnp.where(mask > 0, 0, -1e9)[:, None, None, :]
    for i in range(LAYERS):
        name = f"layer_{i}/"
        qvk = dense(p, name + "attention/qvk", x).reshape(BATCH, SEQUENCE, HIDDEN, 3)
        query, value, key = (qvk[..., k].reshape(BATCH, SEQUENCE, HEADS, -1) for k in range(3))
        context = attention(query, key, value, bias).reshape(BATCH, SEQUENCE, HIDDEN)
        x = layer_norm(p, name + "attention_norm", dense(p, name + "attention/output", context) + x)
        y = jax.nn.gelu(dense(p, name + "intermediate", x), approximate=False)
        x = layer_norm(p, name + "output_norm", dense(p, name + "output", y) + x)
    x = layer_norm(p, "head/norm", jax.nn.gelu(dense(p, "head", x), approximate=False))
    logits = x @ p["embedding/words/embedding"].T + p["output/bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    counted = labels > 0
    return 0.1234 * jnp.where(counted, losses, 0).sum() / counted.sum()


def mlp_loss(p, x, y):
    for i in range(LAYERS):
        x = dense(p, f"layer_{i}", x)
        if i + 1 < LAYERS:
            x = jax.nn.relu(x)
    return ((x - y) ** 2).mean()


def norm_shapes(name):
    return [(name + "/scale", (HIDDEN,)), (name + "/bias", (HIDDEN,))]


def dense_shapes(name, *dims, outputs=1):
    return [(name + "/kernel", dims), (name + "/bias", dims[-outputs:])]


def gpt_shapes():
    shapes = [("embedding/tokens/embedding", (VOCABULARY, HIDDEN)),
              ("embedding/positions/embedding", (SEQUENCE, HIDDEN))]
    for i in range(LAYERS):
        name = f"layer_{i}/"
        shapes += norm_shapes(name + "attention_norm")
        for part in ("query", "key", "value"):
            shapes += dense_shapes(f"{name}attention/{part}", HIDDEN, HEADS, HIDDEN // HEADS, outputs=2)
        shapes += dense_shapes(name + "attention/output", HEADS, HIDDEN // HEADS, HIDDEN)
        shapes += norm_shapes(name + "mlp_norm")
        shapes += dense_shapes(name + "mlp/up", HIDDEN, 4 * HIDDEN) + dense_shapes(name + "mlp/down", 4 * HIDDEN, HIDDEN)
    return shapes + norm_shapes("final_norm") + [("head/kernel", (HIDDEN, VOCABULARY))]


def bert_shapes():
    shapes = [("embedding/words/embedding", (VOCABULARY, HIDDEN)),
              ("embedding/positions/embedding", (SEQUENCE, HIDDEN)),
              ("embedding/types/embedding", (2, HIDDEN))] + norm_shapes("embedding/norm")
    for i in range(LAYERS):
        name = f"layer_{i}/"
        shapes += dense_shapes(name + "attention/qvk", HIDDEN, 3 * HIDDEN)
        shapes += dense_shapes(name + "attention/output", HIDDEN, HIDDEN)
        shapes += norm_shapes(name + "attention_norm")
        shapes += dense_shapes(name + "intermediate", HIDDEN, 4 * HIDDEN)
        shapes += dense_shapes(name + "output", 4 * HIDDEN, HIDDEN)
        shapes += norm_shapes(name + "output_norm")
    return shapes + dense_shapes("head", HIDDEN, HIDDEN) + norm_shapes("head/norm") + [("output/bias", (VOCABULARY,))]


def mlp_shapes():
    return sum((dense_shapes(f"layer_{i}", HIDDEN, HIDDEN) for i in range(LAYERS)), [])


def initial(number, name, dims):
    values = 0.3 * np.sin(1 + number + 0.37 * np.arange(np.prod(dims)))
    return jnp.asarray(values.reshape(dims) + (1 if name.endswith("/scale") else 0))


def integers(num_values, *dims):
    j = np.arange(np.prod(dims))
    return jnp.asarray(((7 * j + j // 5 + 1) % num_values).reshape(dims))


def floats(number, *dims):
    return jnp.asarray(np.sin(0.61 * np.arange(np.prod(dims)) + number).reshape(dims))


def train(loss_of, shapes, batch, optimizer):
    params = {name: initial(i, name, dims) for i, (name, dims) in enumerate(shapes)}
    state = optimizer.init(params)
    losses = []
    for _ in range(STEPS):
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return {"losses": losses, "norms": {name: float(jnp.linalg.norm(params[name])) for name, _ in shapes}}


def main():
    ids = (BATCH, SEQUENCE)
    decays = lambda params: {name: name.endswith(("kernel", "embedding")) for name in params}
    adamw = optax.adamw(1e-2, weight_decay=0.1, mask=decays)
    words = integers(VOCABULARY, *ids)
    results = {
        "mlp": train(mlp_loss, mlp_shapes(), (floats(0, BATCH, HIDDEN), floats(1, BATCH, HIDDEN)),
                     optax.sgd(1e-1, momentum=0.9)),
        "gpt": train(gpt_loss, gpt_shapes(), (words, words), adamw),
        "bert": train(bert_loss, bert_shapes(), (words, integers(2, *ids), integers(2, *ids), integers(SEQUENCE, *ids), words),
                      optax.adam(1e-2)),
    }
    mlp_batch = (floats(0, BATCH, HIDDEN), floats(1, BATCH, HIDDEN))
    # optax counts the updates made before, minka's schedules this one, too.
    cosine = optax.warmup_cosine_decay_schedule(0, 0.2, warmup_steps=2, decay_steps=5, end_value=0.02)
    linear = optax.linear_schedule(0.2, 0.05, 3)
    optimizers = {
        "nesterov": optax.sgd(1e-1, momentum=0.9, nesterov=True),
        "lion": optax.lion(1e-2, weight_decay=0.1, mask=decays),
        "lamb": optax.lamb(1e-2, weight_decay=0.1, mask=decays),
        "adafactor": optax.adafactor(1e-2),
        "adafactor_factored": optax.adafactor(1e-2, min_dim_size_to_factor=4),
        "adafactor_unscaled": optax.adafactor(1e-2, min_dim_size_to_factor=4, multiply_by_parameter_scale=False,
                                              clipping_threshold=0.5),
        "cosine": optax.sgd(lambda count: cosine(count + 1)),
        "linear": optax.sgd(lambda count: linear(count + 1), momentum=0.9),
        "inverse_sqrt": optax.adam(lambda count: 0.2 / jnp.sqrt(count + 1)),
        "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)),
        "hardly_clipped": optax.chain(optax.clip_by_global_norm(1e3), optax.sgd(1e-1)),
    }
    for name, optimizer in optimizers.items():
        results["mlp_" + name] = train(mlp_loss, mlp_shapes(), mlp_batch, optimizer)
    path = pathlib.Path(__file__).resolve().parent / "reference.json"
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
