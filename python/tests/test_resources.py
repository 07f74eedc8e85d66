"""Importing is quick, and steps take nothing that they do not give back."""

import pathlib
import subprocess
import sys
import time

import minka
import numpy as np
import psutil
from conftest import make_program


def test_import_is_quick_and_without_jax():
    seconds = []
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "import minka, sys; assert 'jax' not in sys.modules"], check=True)
        both = time.monotonic() - begin
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", ""], check=True)
        seconds.append(both - (time.monotonic() - begin))
    print(f"import minka: {min(seconds):.3f} s")
    assert min(seconds) <= 0.3


def test_steps_keep_no_memory_and_no_handles(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=minka.Zero2())
    process = psutil.Process()
    seen = []
    for _ in range(4):
        for i in range(100):
            state, loss = parallel(state, batches[i % 3])
        assert np.isfinite(float(loss))
        seen.append((process.memory_info().rss, process.num_fds(), process.num_threads()))
    print(f"bytes, files, threads after every 100 steps: {seen}")
    assert seen[-1][0] - seen[0][0] < 8 << 20
    assert seen[-1][1:] == seen[0][1:]
