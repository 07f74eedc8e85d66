#!/bin/bash
# test_pip_install.sh DIR: installs the Python package into the fresh virtual environment DIR, with JAX from PyPI, and runs
# the command and a parallelised function there.
set -euo pipefail
dir=$1
rm -rf "$dir"
"$(dirname "$0")/make_venv.sh" "$dir" /dev/null
# By the name that CMake finds by itself, so that ccache has what `make build` compiled.
CC=cc CXX=c++ "$dir/bin/python" -m pip install --quiet --disable-pip-version-check '.[jax]'

python=$(realpath "$dir")/bin
cd /
"$python/minka" plan mlp --layers 1 --mesh 2 >/dev/null
JAX_PLATFORMS=cpu "$python/python" - <<'PROGRAM'
import jax
import minka
import numpy as np


def step(params, x):
    def loss_fn(params):
        return (minka.mark_boundary(jax.numpy.tanh(x @ params["a"])) @ params["b"]).mean()

    loss, grads = minka.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda w, g: w - g, params, grads), loss


params = {"a": np.full((8, 8), 0.1, np.float32), "b": np.ones((8, 4), np.float32)}
x = np.ones((4, 8), np.float32)
wanted, wanted_loss = jax.jit(step)(params, x)
minka.init(num_devices=2)
for method in (minka.DataParallel(), minka.Pipeline(num_micro_batches=2, stages=2)):
    now, loss = minka.parallelize(step, method=method)(params, x)
    np.testing.assert_allclose(float(loss), wanted_loss, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(now["a"]), wanted["a"], rtol=1e-5)
print("installed at", minka.__path__[0])
PROGRAM
