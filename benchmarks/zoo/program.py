"""What a model of the zoo is: a training step with its state and a batch, small enough to run quickly on virtual devices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import minka
import numpy as np
import optax


class Program(NamedTuple):
    """step: of (state, batch), which returns (state, loss). state, batch: arrays; examples count along dimension 0."""

    step: Callable
    state: Any
    batch: Any


def training(loss_of: Callable, params: Any, rest: Any, optimizer: optax.GradientTransformation, batch: Any) -> Program:
    """loss_of: (params, rest, batch) -> (loss, rest): what is not trained but changes, such as statistics and random keys."""

    def step(state, batch):
        def of_params(params):
            return loss_of(params, state["rest"], batch)

        (loss, rest), gradients = minka.value_and_grad(of_params, has_aux=True)(state["params"])
        updates, moments = optimizer.update(gradients, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments, "rest": rest}, loss

    return Program(step, {"params": params, "moments": optimizer.init(params), "rest": rest}, batch)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(np.float32), labels).mean()


def tokens(vocabulary: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(vocabulary, size=shape, dtype=np.int32)


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def key() -> jax.Array:
    return jax.random.key(0)


OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.01, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(optax.cosine_decay_schedule(1e-3, 100)),
    "adamw": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(1e-4, 1e-3, 10, 100)),
    "clipped adamw": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "adafactor": lambda: optax.adafactor(1e-3),
    "lion": lambda: optax.lion(1e-4),
    "accumulated rmsprop": lambda: optax.MultiSteps(optax.rmsprop(1e-3), every_k_schedule=2),
}
