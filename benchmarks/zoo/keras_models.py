"""keras 3 on JAX: its applications at a small input, and models of its layers. Trained by its stateless call."""

import os
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "jax"

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

from program import OPTIMIZERS, Program, cross_entropy, images, tokens, training  # noqa: E402


def of_keras(model: keras.Model, optimizer: str, x: np.ndarray, y: np.ndarray) -> Program:
    """Arrays by the paths of their variables."""
    trained, others = model.trainable_variables, model.non_trainable_variables

    def loss_of(params, rest, batch):
        out, changed = model.stateless_call([params[v.path] for v in trained], [rest[v.path] for v in others], batch["x"],
                                            training=True)
        return cross_entropy(out, batch["y"]), {v.path: value for v, value in zip(others, changed)}

    return training(loss_of, {v.path: v.value for v in trained}, {v.path: v.value for v in others}, OPTIMIZERS[optimizer](),
                    {"x": x, "y": y})


def application(name: str, optimizer: str, size: int = 32, **options) -> Callable[[], Program]:
    def make():
        keras.utils.set_random_seed(0)
        model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None,
                                                  **options)
        return of_keras(model, optimizer, images(8, size, size, 3), tokens(10, 8))
    return make


def sequential(optimizer: str, x: Callable, y: Callable, *stack: Callable) -> Callable[[], Program]:
    def make():
        keras.utils.set_random_seed(0)
        inputs = x()
        model = keras.Sequential([layers.Input(inputs.shape[1:], dtype=inputs.dtype)] + [make_layer() for make_layer in stack])
        return of_keras(model, optimizer, inputs, y())
    return make


def transformer() -> Program:
    keras.utils.set_random_seed(0)
    inputs = layers.Input((24,), dtype="int32")
    x = layers.Embedding(96, 64)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.GroupQueryAttention(16, 4, 2)(y, y, use_causal_mask=True)])
        y = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.EinsumDense("abc,cd->abd", (None, 64))(y))])
    return of_keras(keras.Model(inputs, layers.Dense(96)(x)), "clipped adamw", tokens(96, 16, 24), tokens(96, 16, 24))


MODELS = {
    "keras MobileNet": application("MobileNet", "sgd", alpha=0.25),
    "keras MobileNetV2": application("MobileNetV2", "adamw", alpha=0.35),
    "keras MobileNetV3Small": application("MobileNetV3Small", "lion", minimalistic=True),
    "keras EfficientNetB0": application("EfficientNetB0", "adam"),
    "keras ResNet50V2": application("ResNet50V2", "sgd"),
    "keras DenseNet121": application("DenseNet121", "adafactor"),
    "keras ConvNeXtTiny": application("ConvNeXtTiny", "adamw"),
    "keras VGG16": application("VGG16", "sgd"),
    "keras transformer": transformer,
    "keras recurrent": sequential("adam", lambda: tokens(96, 16, 12), lambda: tokens(96, 16, 12),
                                  lambda: layers.Embedding(96, 16),
                                  lambda: layers.Bidirectional(layers.LSTM(16, return_sequences=True)),
                                  lambda: layers.GRU(32, return_sequences=True), lambda: layers.Dense(96)),
    "keras convolutions": sequential("lion", lambda: images(16, 16, 16, 3), lambda: tokens(10, 16),
                                     lambda: layers.RandomFlip(), lambda: layers.SeparableConv2D(16, 3, padding="same"),
                                     lambda: layers.BatchNormalization(), lambda: layers.ReLU(), lambda: layers.MaxPooling2D(),
                                     lambda: layers.Conv2DTranspose(8, 2, strides=2), lambda: layers.SpatialDropout2D(0.1),
                                     lambda: layers.GlobalAveragePooling2D(), lambda: layers.Dense(10)),
}
