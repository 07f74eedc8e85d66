"""Importing loads little, and steps take nothing that they do not give back."""

import os
import subprocess
import sys
import threading
import time

import minka
import numpy as np
import psutil
import pytest
from conftest import make_program
from minka import session
from minka.compiled import CompiledStep


def test_import_loads_neither_jax_nor_the_planner():
    program = """
import sys, minka
loaded = [name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib") or name.endswith("_extension")]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_no_plugin_is_in_the_user_s_process():
    program = """
import minka, numpy as np
minka.init(num_devices=2)
state, total = minka.parallelize(lambda w, x: (w * 2, (x @ w).sum()))(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
assert float(total) == 64
maps = open("/proc/self/maps").read()
assert "_extension" in maps and "pjrt" not in maps
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_workers_have_the_threads_that_their_devices_need():
    program = """
import minka, numpy as np, psutil
minka.init(num_devices=2)
state, total = minka.parallelize(lambda w, x: (w * 2, (x @ w).sum()))(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
assert float(total) == 64
print(max(worker.num_threads() for worker in psutil.Process().children()))
"""
    for_jaxlib = {"NPROC": "400"}
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=os.environ | for_jaxlib)
    assert int(found.stdout) < 200


def test_other_threads_run_while_minka_plans_and_compiles(devices):
    step, state, batches = make_program("transformer")
    lowered = minka.parallelize(step).lower(state, batches[0])
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.002):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    CompiledStep(lowered.step, minka.Shard(), session.current())
    seconds = time.monotonic() - begin
    done.set()
    thread.join()
    longest = max(b - a for a, b in zip(ticks, ticks[1:]))
    print(f"planned and compiled in {seconds:.2f} s, longest pause of another thread {longest:.3f} s")
    assert longest < 0.5 * seconds


def test_fetched_arrays_stay_while_steps_go_on(devices):
    """They lie in memory shared with the worker as long as there is room, and are copied where they are many."""
    step = minka.parallelize(lambda w, x: (w + x, w.sum()), method=minka.DataParallel())
    state, x = np.zeros((5_000_000,), np.float32), np.ones((5_000_000,), np.float32)
    fetched = []
    for _ in range(12):  # 240 MB, more than half of that memory
        state, _ = step(state, x)
        fetched.append(np.asarray(state))
    minka.shutdown()
    for i, array in enumerate(fetched):
        assert array.min() == array.max() == i + 1


def children():
    return psutil.Process().children(recursive=True)


def usage():
    """(bytes, files, threads) of this process and the workers."""
    processes = [psutil.Process(), *children()]
    return tuple(sum(figures) for figures in zip(*((p.memory_info().rss, p.num_fds(), p.num_threads()) for p in processes)))


@pytest.mark.parametrize("method", [minka.Zero2(), minka.Pipeline(num_micro_batches=4, stages=2)])
def test_steps_keep_no_memory_and_no_handles(devices, method):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=method)
    seen = []
    for _ in range(4):
        for i in range(100):
            state, loss = parallel(state, batches[i % 3])
        assert np.isfinite(float(loss))
        seen.append(usage())
    print(f"bytes, files, threads after every 100 steps: {seen}")
    assert seen[-1][0] - seen[0][0] < 8 << 20
    assert seen[-1][1] <= seen[0][1]
    assert seen[-1][2] <= seen[0][2] + 5  # some come and go


def test_workers_end_with_the_session_and_its_arrays():
    minka.init(num_devices=4)
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=2))
    state, loss = parallel(state, batches[0])
    assert len(children()) >= 2
    minka.shutdown()
    assert np.isfinite(float(loss))
    del state, loss
    deadline = time.monotonic() + 10
    while children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children()
