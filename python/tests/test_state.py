"""State that is made where it lies, and kept in checkpoints."""

import jax
import minka
import numpy as np
import pytest
from conftest import Mlp, assert_close, make_program, run
from flax.training.train_state import TrainState


def made_anew(program):
    """A function of a key that makes state for the program."""
    model = Mlp()

    def init(key):
        params = model.init(key, program.batches[0]["x"])["params"]
        return TrainState.create(apply_fn=program.state.apply_fn, params=params, tx=program.state.tx)

    return init


@pytest.mark.parametrize("method", [minka.Zero3(), minka.Pipeline(num_micro_batches=4, stages=2)], ids=lambda method: method.name)
def test_state_is_made_where_the_plan_wants_it(devices, method):
    program = make_program("mlp")
    init = made_anew(program)
    parallel = minka.parallelize(program.step, method=method)
    with pytest.raises(minka.Error, match="train_step has no plan yet"):
        parallel.create_state(init, jax.random.key(0))
    parallel.compile(jax.eval_shape(init, jax.random.key(0)), program.batches[0])
    state = parallel.create_state(init, jax.random.key(0))
    leaves = jax.tree.leaves(state)
    assert all(isinstance(leaf, minka.DistributedArray) for leaf in leaves)
    shardings = {row["name"]: row["sharding"] for row in parallel.plan.json.get("parameters", [])}
    assert all(shardings[leaf.name] in leaf.layout for leaf in leaves if shardings)
    assert_close(state, jax.jit(init)(jax.random.key(0)), tolerance=1e-6)
    wanted, wanted_losses = run(jax.jit(program.step), init(jax.random.key(0)), program.batches)
    now, losses = run(parallel, state, program.batches)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)


def test_state_is_what_one_device_makes(devices):
    program = make_program("mlp")
    states = []

    def init(key):
        return jax.tree.map(lambda x: jax.random.normal(key, np.shape(x)).astype(jax.numpy.result_type(x)), program.state)


    # By data parallelism every device makes all of it.
    for method in (minka.DataParallel(), minka.Zero3(), minka.Shard(mesh="x=2,y=2"), minka.Pipeline(num_micro_batches=4, stages=2)):
        parallel = minka.parallelize(program.step, method=method)
        parallel.compile(program.state, program.batches[0])
        states.append(jax.tree.map(np.asarray, parallel.create_state(init, jax.random.key(7))))
    for state in states[1:]:
        assert_close(state, states[0], tolerance=0)


def test_state_by_linear_algebra(devices, monkeypatch):
    parallel = minka.parallelize(lambda state, x: ({"w": state["w"] * 2}, (x @ state["w"]).sum()))
    parallel.compile({"w": np.ones((8, 8), np.float32)}, np.ones((8, 8), np.float32))

    def init(key):
        return {"w": jax.nn.initializers.orthogonal()(key, (8, 8))}

    def init_by_host(key):
        return {"w": jax.numpy.linalg.svd(jax.random.normal(key, (8, 8)))[0]}

    state = parallel.create_state(init_by_host, jax.random.key(0))
    assert_close(state, jax.jit(init_by_host)(jax.random.key(0)), tolerance=0)
    assert isinstance(state["w"], minka.DistributedArray)
    # Which does not bring state from the host.
    monkeypatch.delattr(type(parallel._last()), "_put_state")
    assert_close(parallel.create_state(init, jax.random.key(0)), jax.jit(init)(jax.random.key(0)))


def test_other_state_is_refused(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step)
    parallel.compile(state, batches[0])
    with pytest.raises(minka.Error, match="another tree than state that train_step was planned for: step is missing"):
        parallel.create_state(lambda: state.params)
    with pytest.raises(minka.Error, match=r"params/Dense_0/bias is float32\[2\]; the step was planned for float32\[64\]"):
        parallel.create_state(lambda: jax.tree.map(lambda x: jax.numpy.ones(2) if np.shape(x) == (64,) else x, state))
    two = minka.parallelize(lambda a, b, x: ({"w": a["w"]}, {"w": b["w"]}, x.sum()))
    two.compile({"w": np.ones(4)}, {"w": np.ones(4)}, np.ones((4, 4)))
    with pytest.raises(minka.Error, match="has 2 arguments that are state; it must be one for this"):
        two.create_state(lambda: {"w": np.ones(4)})


def test_a_run_goes_on_from_its_checkpoint_by_another_method(devices, tmp_path):
    step, state, batches = make_program("mlp")
    first = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=2))
    now, _ = run(first, state, batches[:1])
    assert first.save(tmp_path, now, step=1) == str(tmp_path / "step_00000001")
    kept = jax.tree.map(np.asarray, now)
    wanted, wanted_losses = run(first, now, batches[1:])

    second = minka.parallelize(step, method=minka.Zero3())
    second.compile(state, batches[0])
    restored = second.restore(tmp_path)
    assert_close(restored, kept, tolerance=0)
    now, losses = run(second, restored, batches[1:])
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)


def test_checkpoints_keep_every_type(devices, tmp_path):
    import jax.numpy as jnp
    state = {"half": jnp.ones((4, 4), jnp.bfloat16), "key": jax.random.key(3), "count": np.int32(7), "flag": np.array([True, False])}
    parallel = minka.parallelize(lambda state, x: (state, x.sum()))
    state, _ = parallel(state, np.ones((4, 4), np.float32))
    for step in (1, 2, 3):
        parallel.save(tmp_path, state, step=step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000002", "step_00000003"]
    restored = parallel.restore(tmp_path / "step_00000002")
    for name, value in state.items():
        assert restored[name].dtype == value.dtype
        np.testing.assert_array_equal(np.asarray(restored[name]), np.asarray(value))


def test_what_is_no_checkpoint_of_it(devices, tmp_path):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step)
    parallel.compile(state, batches[0])
    with pytest.raises(minka.Error) as raised:
        parallel.restore(tmp_path)
    assert raised.value.code == "NOT_FOUND"
    other = minka.parallelize(make_program("transformer").step)
    now, _ = other(make_program("transformer").state, make_program("transformer").batches[0])
    other.save(tmp_path, now, step=1)
    with pytest.raises(minka.Error, match="is a checkpoint of train_step, which has no .*Dense_0"):
        parallel.restore(tmp_path)
    other(now, make_program("transformer").batches[0])
    with pytest.raises(minka.Error, match="was consumed by a step; use what that returned"):
        other.save(tmp_path, now, step=2)
    with pytest.raises(minka.Error, match="keep is 0"):
        other.save(tmp_path, now, step=2, keep=0)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
