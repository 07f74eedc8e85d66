"""Plans by the costs that were measured on this machine."""

import json
import subprocess

import minka
import pytest
from conftest import make_program, run
from test_errors import refused


def cost_models_of_plans():
    step, state, batches = make_program("mlp")
    on_runtime, on_jax = minka.parallelize(step), minka.jit(step)
    for parallel in (on_runtime, on_jax):
        run(parallel, state, batches)
    return [parallel.plan.json["cost_model"] for parallel in (on_runtime, on_jax)]


@pytest.fixture(autouse=True)
def ends_the_session():
    yield
    minka.shutdown()


# One device is profiled fastest: there are no collectives.
def test_measured_costs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MINKA_PJRT_PLUGIN", minka.session.plugin_path())
    command = [minka.session.worker_binary(), "profile", "--cached", "--json", "--num-devices", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as beside:
        minka.init(num_devices=1, cost_model="measured")
        of_other, _ = beside.communicate()
    assert cost_models_of_plans() == ["measured", "measured"]
    minka.shutdown()

    # One of the two processes measured, the other waited for that. What is kept is taken again.
    [kept] = (tmp_path / "minka").glob("*.json")
    calibration = json.loads(kept.read_text())
    assert json.loads(of_other) == calibration
    kept.write_text(json.dumps(calibration | {"launch_us": 5e6}))
    minka.init(num_devices=1, cost_model="measured")
    step, state, batches = make_program("mlp")
    assert minka.parallelize(step).compile(state, batches[0]).json["step_time_us"] > 5e6
    minka.shutdown()

    kept.write_text("{")
    with refused("FAILED_PRECONDITION", f"minka.init: {kept}: *; `minka profile` measures anew"):
        minka.init(num_devices=1, cost_model="measured")
    minka.init(num_devices=1)
    assert cost_models_of_plans() == ["roofline", "roofline"]


def test_unknown_costs_are_refused():
    with refused("INVALID_ARGUMENT", "minka.init: cost_model is 'guessed'; there are \"roofline\" and \"measured\""):
        minka.init(num_devices=1, cost_model="guessed")
    with pytest.raises(minka.Error, match="minka has no devices yet"):
        minka.session.current()
