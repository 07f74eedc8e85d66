"""Ctrl-C, and the line that says what minka is at: a program on a terminal of its own is interrupted while it plans, compiles, runs."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, signal, sys, time
import jax, jax.numpy as jnp, numpy as np, minka, psutil

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's jobs in the background ignore
minka.init(num_devices=4, progress=%(progress)s)
WIDTH, LAYERS, REPEATS = %(size)s


def step(weights, x):
    def loss_fn(weights):
        y = x
        for w in weights:
            y = jax.lax.fori_loop(0, REPEATS, lambda i, y: jnp.tanh(y @ w), y) if REPEATS else minka.mark_boundary(jnp.tanh(y @ w))
        return (y ** 2).mean()

    if REPEATS:
        return weights, loss_fn(weights)
    loss, grads = minka.value_and_grad(loss_fn)(weights)
    return jax.tree.map(lambda w, g: w - g, weights, grads), loss


def children():
    return psutil.Process().children(recursive=True)


weights = [np.eye(WIDTH, dtype=np.float32) for _ in range(LAYERS)]
x = np.ones((WIDTH, WIDTH), np.float32)
parallel = minka.parallelize(step, method=minka.%(method)s)
try:
    if %(run)s:
        parallel.compile(weights, x)
    result = parallel(weights, x)
    print("runs now", file=sys.stderr, flush=True)
    float(result[1])
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
parallel = result = None
minka.shutdown()
deadline = time.monotonic() + 20  # beside other tests a step may take as long
while children() and time.monotonic() < deadline:
    time.sleep(0.05)
print(f"{len(children())} children", flush=True)
minka.init(num_devices=2)
state, total = minka.parallelize(lambda w, x: (w, (x @ w).sum()))(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
print("total", float(total), flush=True)
"""

# (WIDTH, LAYERS, REPEATS)
MANY_LAYERS, MOST_LAYERS, LONG_STEP = (64, 160, 0), (64, 500, 0), (1024, 1, 200)


def start(tmp_path, **what):
    terminal, stderr = pty.openpty()
    script = tmp_path / "program.py"
    script.write_text(PROGRAM % ({"progress": True, "run": False, "method": "Shard()", "size": MANY_LAYERS} | what))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=stderr, text=True)
    os.close(stderr)
    return process, terminal


def read_until(terminal, word, seconds=120):
    """What the terminal shows, until it shows the word."""
    seen, deadline = "", time.monotonic() + seconds
    while word not in seen:
        assert select.select([terminal], [], [], deadline - time.monotonic())[0], f"no {word!r} in {seen!r}"
        seen += os.read(terminal, 4096).decode()
    return seen


@pytest.mark.parametrize("word, what", [
    (": plan (", {}),
    (": plan (", {"size": MOST_LAYERS, "method": "Pipeline(num_micro_batches=4, layers=12)"}),
    (": xla (", {}),
    (": xla (", {"method": "Pipeline(num_micro_batches=4, stages=2)"}),
    ("runs now", {"run": True, "size": LONG_STEP, "method": "DataParallel()"}),
], ids=["plan", "plan_pipeline", "compile", "compile_pipeline", "step"])
def test_ctrl_c_is_heard_and_leaves_nothing_behind(tmp_path, word, what):
    process, terminal = start(tmp_path, **what)
    seen = read_until(terminal, word)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n", seen
    seconds = time.monotonic() - begin
    print(f"{word!r}: KeyboardInterrupt after {seconds:.2f} s")
    assert seconds < 1.5
    assert process.stdout.readline() == "0 children\n"
    print(f"shutdown and the end of the workers: {time.monotonic() - begin:.2f} s")
    assert process.stdout.read() == "total 64.0\n"
    assert process.wait(timeout=60) == 0
    os.close(terminal)


def test_progress_is_shown_on_terminals_alone(tmp_path):
    process, terminal = start(tmp_path)
    seen = read_until(terminal, "minka: step: xla (")
    assert "\rminka: step: plan (" in seen
    process.kill()
    process.wait()
    os.close(terminal)


def test_no_progress_where_nobody_wants_it(tmp_path):
    process, terminal = start(tmp_path, size=(64, 20, 0), progress=False, run=True)
    assert read_until(terminal, "runs now").strip() == "runs now"
    process.kill()
    process.wait()
    os.close(terminal)
