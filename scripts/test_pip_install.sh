#!/bin/bash
# test_pip_install.sh DIR PYTHON: builds the wheel of the interpreter PYTHON into DIR/wheels and installs it into the fresh virtual environment
# DIR/venv, with JAX from PyPI. Runs the command and a parallelised function there, where Debian's libraries are hidden.
set -euo pipefail
scripts=$(realpath "$(dirname "$0")")
dir=$1
rm -rf "$dir"
PYTHON=$2 "$scripts/make_venv.sh" "$dir/venv" /dev/null
python=$(realpath "$dir")/venv/bin
"$scripts/build_wheel.sh" "$python/python" "$dir/wheels"
wheel=$(echo "$dir"/wheels/minka-*-manylinux_*.whl)
"$python/python" -m pip install --quiet --disable-pip-version-check "${wheel}[jax]"
package=$("$python/python" -c 'import minka; print(minka.__path__[0])')

"$scripts/hide_libraries.sh" --keep "$dir/without"
"$scripts/hide_libraries.sh" --keep "$dir/of_python" "$python/python"
# What another UCX of the machine would load; minka's loads only what came with it.
for libraries in "$dir/without" "$dir/of_python"; do
  mkdir -p "$libraries/ucx"
  cc -shared -o "$libraries/ucx/libuct_ib.so.0" -xc - <<<'void abort(void); __attribute__((constructor)) void Load(void) { abort(); }'
done
hidden=("$scripts/hide_libraries.sh" "$(realpath "$dir/without")")
hidden_but_of_python=("$scripts/hide_libraries.sh" "$(realpath "$dir/of_python")")
if "${hidden[@]}" "$package/bin/minka" --help >/dev/null; then
  echo "${wheel##*/} runs with nothing but $(cd "$dir/without" && echo libc* libgcc* libstdc++.so.6)"
else
  if [[ $? -ne 77 ]]; then exit 1; fi
  echo "SKIPPED: no namespace of mounts is allowed here, so Debian's libraries are not hidden from ${wheel##*/}" >&2
  hidden=() hidden_but_of_python=()
fi

cd /
"${hidden[@]}" "$package/bin/minka" plan mlp --layers 1 --mesh 2 >/dev/null
"${hidden_but_of_python[@]}" "$python/minka" plan mlp --layers 1 --mesh 2 >/dev/null
JAX_PLATFORMS=cpu "${hidden_but_of_python[@]}" "$python/python" - <<'PROGRAM'
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
