"""A few models of the zoo, which benchmarks/zoo runs as a whole."""

import pathlib
import sys

import jax
import minka
import numpy as np
import pytest
from conftest import run

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks" / "zoo"))

from flax_models import MODELS as FLAX  # noqa: E402
from keras_models import MODELS as KERAS  # noqa: E402

MODELS = FLAX | KERAS
STAGES = minka.Pipeline(num_micro_batches=2, layers=4, stages=2)


@pytest.mark.parametrize("name, method", [
    ("flax transformer, scanned", minka.Shard()),
    ("flax transformer, scanned, remat", STAGES),
    ("flax resnet", minka.Shard()),
    ("flax gru", minka.Zero2()),
    ("flax diffusion unet", minka.Zero3()),
    ("nnx classifier", minka.DataParallel()),
    ("keras transformer", STAGES),
    ("keras recurrent", minka.Shard()),
    ("keras convolutions", minka.Zero3()),
], ids=lambda value: value if isinstance(value, str) else value.name)
def test_three_steps_are_those_of_jax(devices, name, method):
    program = MODELS[name]()
    parallel = minka.parallelize(program.step, method=method)
    _, losses = run(parallel, program.state, [program.batch] * 3)
    _, wanted = run(jax.jit(program.step), program.state, [program.batch] * 3)
    np.testing.assert_allclose(losses, wanted, rtol=2e-3)
