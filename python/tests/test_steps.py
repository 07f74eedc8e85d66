"""Three steps by every method compute what jax.jit computes."""

import jax
import jax.numpy as jnp
import minka
import numpy as np
import pytest
from conftest import assert_close, make_program, run

METHODS = {
    "shard": minka.Shard(),
    "shard_2x2": minka.Shard(mesh="x=2,y=2"),
    "micro_batches": minka.Shard(num_micro_batches=2),
    "data": minka.DataParallel(),
    "zero2": minka.Zero2(),
    "zero3": minka.Zero3(),
    "pipeline": minka.Pipeline(num_micro_batches=4, stages=2),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("program", ["mlp", "transformer"])
def test_three_steps_are_those_of_jax(devices, program, method):
    step, state, batches = make_program(program)
    wanted_state, wanted_losses = run(jax.jit(step), state, batches)
    parallel = minka.parallelize(step, method=METHODS[method])
    now, losses = run(parallel, state, batches)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-4)
    assert_close(now, wanted_state, tolerance=5e-3 if program == "transformer" else 1e-4)


def test_pipeline_is_cut_at_the_boundary(devices):
    step, state, batches = make_program("mlp")
    parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=2))
    parallel.compile(state, batches[0])
    assert [stage["layers"] for stage in parallel.plan.json["stages"]] == [[0], [1]]
