"""Batches that are put before the step that takes them."""

import threading

import jax
import minka
import numpy as np
import pytest
from conftest import make_program, run
from jax.sharding import PartitionSpec


def total(batches):
    return sum(np.asarray(batch).sum(axis=0) for batch in batches)


@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec("x", "y")], ids=["batch", "features", "both"])
def test_what_arrives_is_a_permutation(devices, spec):
    samples = np.random.default_rng(0).permutation(256 * 32).reshape(256, 32).astype(np.float32)
    batches = [samples[order] for order in np.random.default_rng(1).permutation(256).reshape(4, 64)]
    parallel = minka.parallelize(lambda state, x: (state + x.sum(axis=0), x), method=minka.Shard(mesh="x=2,y=2", pins={"x": spec}))
    parallel.compile(np.zeros(32, np.float32), batches[0])
    state, arrived = np.zeros(32, np.float32), []
    for batch in minka.DataLoader(batches, parallel, prefetch=2):
        assert isinstance(batch, minka.DistributedArray)
        assert "[" + ",".join(axis or "-" for axis in (*spec, None)[:2]) + "]" in batch.layout
        state, same = parallel(state, batch)
        arrived.append(np.asarray(same))
        np.testing.assert_array_equal(np.asarray(batch), arrived[-1])
    np.testing.assert_array_equal(arrived, batches)
    np.testing.assert_array_equal(np.asarray(state), samples.sum(axis=0))


@pytest.mark.parametrize("method", [minka.Zero3(num_micro_batches=2), minka.Pipeline(num_micro_batches=4, stages=2)], ids=lambda method: method.name)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_steps_are_the_same(devices, method, prefetch):
    step, state, batches = make_program("mlp")
    _, wanted = run(minka.parallelize(step, method=method), state, batches)
    parallel = minka.parallelize(step, method=method)
    _, losses = run(parallel, state, minka.DataLoader(iter(batches), parallel, prefetch=prefetch))
    assert losses == wanted
    _, losses = run(parallel, state, minka.DataLoader(batches, parallel, prefetch=prefetch))
    assert losses == wanted


def test_so_many_are_drawn_ahead_and_no_more(devices):
    drawn = threading.Semaphore(0)
    count = 0

    def source():
        nonlocal count
        for number in range(6):
            count += 1
            drawn.release()
            yield np.full((4, 4), number, np.float32)

    parallel = minka.parallelize(lambda state, x: (state + x.sum(), x.sum()))
    parallel.compile(np.float32(0), np.ones((4, 4), np.float32))
    loader = iter(minka.DataLoader(source(), parallel, prefetch=2))
    next(loader)
    for _ in range(3):
        assert drawn.acquire(timeout=10)
    assert not drawn.acquire(timeout=0.2)
    assert count == 3
    loader.close()
    assert count == 3


def test_what_goes_wrong_is_said_where_the_batch_is_asked_for(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step)
    parallel.compile(state, batches[0])

    def source():
        yield batches[0]
        raise ValueError("the disk is gone")

    loader = iter(minka.DataLoader(source(), parallel))
    assert jax.tree.structure(next(loader)) == jax.tree.structure(batches[0])
    with pytest.raises(ValueError, match="the disk is gone"):
        next(loader)
    with pytest.raises(minka.Error, match=r"batch/x is float32\[2, 16\]; the step was planned for float32\[32, 16\]"):
        list(minka.DataLoader([{"x": batches[0]["x"][:2], "y": batches[0]["y"]}], parallel))
    with pytest.raises(minka.Error, match="this is another tree than a batch that train_step was planned for: .*y is missing"):
        list(minka.DataLoader([{"x": batches[0]["x"]}], parallel))
    with pytest.raises(minka.Error, match="prefetch is -1"):
        minka.DataLoader(batches, parallel, prefetch=-1)
