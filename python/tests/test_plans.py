"""Plans that are kept, pins, and workers that run already."""

import gc
import json
import subprocess

import jax
import minka
import numpy as np
import pytest
from conftest import assert_close, make_program, run
from jax.sharding import PartitionSpec
from minka import session
from test_errors import refused


@pytest.mark.parametrize("method", [minka.Zero3(num_micro_batches=2, remat=["all"]), minka.Shard(mesh="x=2,y=2", pins=["*kernel=[x,-]"]),
                                    minka.Pipeline(num_micro_batches=4, narrow_sums=True, layers=3, stages=2)], ids=lambda method: method.name)
def test_a_saved_plan_runs_again(devices, tmp_path, method):
    step, state, batches = make_program("mlp")
    searched = minka.parallelize(step, method=method)
    wanted_state, wanted_losses = run(searched, state, batches)
    path = tmp_path / "plan.json"
    searched.plan.save(path)
    again = minka.parallelize(step, plan=path)
    now, losses = run(again, state, batches)
    assert losses == wanted_losses
    assert_close(now, wanted_state, tolerance=0)
    assert again.plan.json["search_seconds"] == searched.plan.json["search_seconds"]
    assert str(again.plan) == str(searched.plan)
    assert again.plan.step_time_us == searched.plan.step_time_us > 0
    assert again.plan.peak_memory_bytes == searched.plan.peak_memory_bytes >= sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state)) / 4
    assert again.plan.gap == searched.plan.gap
    assert again.plan.gap is None or 0 <= again.plan.gap < 1


def test_a_saved_plan_can_be_checked_and_explained(devices, tmp_path):
    step, state, batches = make_program("mlp")
    searched = minka.parallelize(step, method=minka.Zero2())
    searched.compile(state, batches[0]).save(tmp_path / "plan.json")
    again = minka.parallelize(step, plan=tmp_path / "plan.json")
    assert again.check(state, batches[0]).startswith("compared with one device after 1 step, ")
    assert again.explain("params/*kernel") == searched.explain("params/*kernel")
    with pytest.raises(minka.Error, match="train_step takes a plan of a file: explain is a method of the function"):
        again.lower(state, batches[0]).explain("*")


def test_a_plan_of_something_else_is_refused(devices, tmp_path):
    step, state, batches = make_program("mlp")
    path = tmp_path / "plan.json"
    minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=2)).compile(state, batches[0]).save(path)
    with pytest.raises(minka.Error, match="the plan was made for module .*, this module is .*; plan again"):
        other = make_program("transformer")
        minka.parallelize(other.step, plan=path)(other.state, other.batches[0])
    with pytest.raises(minka.Error, match="cannot open .*nothing.json"):
        minka.parallelize(step, plan=tmp_path / "nothing.json")(state, batches[0])
    with pytest.raises(minka.Error, match="method, plan and follow each say how; give one of them"):
        minka.parallelize(step, plan=path, method=minka.Shard())
    minka.shutdown()
    minka.init(num_devices=2)
    with pytest.raises(minka.Error, match="the plan's meshes have 4 devices together, the cluster 2"):
        minka.parallelize(step, plan=path)(state, batches[0])


def test_pins_by_partition_spec(devices):
    step, state, batches = make_program("mlp")
    pins = {"params/*kernel": PartitionSpec(None, "model"), "params/Dense_1/*": PartitionSpec(("data", "model")), "*bias": PartitionSpec()}
    parallel = minka.parallelize(step, method=minka.Shard(mesh="data=2,model=2", pins=pins))
    parallel.compile(state, batches[0])
    shardings = {row["name"]: row["sharding"] for row in parallel.plan.json["parameters"]}
    assert shardings["params/Dense_0/kernel"] == "[-,model]"
    assert shardings["params/Dense_1/kernel"] == "[data+model,-]"
    # The last pin that names it.
    assert shardings["params/Dense_1/bias"] == "[-]"
    now, losses = run(parallel, state, batches)
    assert now.params["Dense_0"]["kernel"].layout == "f32[16,64] [-,model] on data=2,model=2"
    np.testing.assert_allclose(losses, run(jax.jit(step), state, batches)[1], rtol=1e-4)


@pytest.mark.parametrize("pins, message", [
    ({"weights*": PartitionSpec()}, r"pins: no parameter is named weights\*; the first is "),
    ({"params/Dense_0/bias": PartitionSpec(None, "x")}, r"pins: PartitionSpec\(None, 'x'\) names 2 dimensions; params/Dense_0/bias has 1"),
    ({"params/Dense_0/bias": PartitionSpec("z")}, "z"),
])
def test_pins_that_do_not_fit(devices, pins, message):
    step, state, batches = make_program("mlp")
    with pytest.raises(minka.Error, match=message):
        minka.parallelize(step, method=minka.Shard(mesh="x=4", pins=pins))(state, batches[0])


def test_workers_that_run_already(tmp_path):
    (tmp_path / "token").write_text("a secret\n")
    workers = [subprocess.Popen([session.worker_binary(), "worker", "--token-file", tmp_path / "token"], stdout=subprocess.PIPE, text=True)
               for _ in range(2)]
    try:
        addresses = [worker.stdout.readline().removeprefix("minka worker listens on ").strip() for worker in workers]
        hosts = tmp_path / "hosts.json"
        hosts.write_text(json.dumps({"token_file": "token", "workers": [{"address": address, "num_devices": 2} for address in addresses]}))
        minka.init(hosts=hosts)
        assert session.current().num_devices == 4
        step, state, batches = make_program("mlp")
        parallel = minka.parallelize(step, method=minka.Pipeline(num_micro_batches=4, stages=2))
        now, losses = run(parallel, state, batches)
        np.testing.assert_allclose(losses, run(jax.jit(step), state, batches)[1], rtol=1e-4)
        with pytest.raises(minka.Error, match="has 2 devices; mesh 0 has 4"):
            minka.parallelize(step)(state, batches[0])
    finally:
        minka.shutdown()
        for worker in workers:
            worker.kill()
            worker.wait()


def test_hosts_that_cannot_be_read(tmp_path):
    with pytest.raises(minka.Error, match="hosts.json is no hosts file"):
        minka.init(hosts=tmp_path / "hosts.json")


def _lowered(method, name="mlp"):
    step, state, batches = make_program(name)
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), (state, batches[0]))
    return minka.parallelize(step, method=method).lower(*abstract)


def test_plans_for_a_cluster_without_devices():
    lowered = _lowered(minka.Shard())
    plan = lowered.plan("p3.16xlarge:1x4")
    assert plan.cluster == "p3.16xlarge:1x4"
    assert plan.json["options"] == {"cluster": "p3.16xlarge:1x4", "frontend": "python", "method": "shard"}
    assert plan.json["cost_model"] == "roofline"
    assert 0 < plan.step_time_us < lowered.plan("1080ti:2").step_time_us
    assert "params/Dense_0/kernel" in str(plan)
    assert plan.explain("params/*kernel").startswith("The best plans on mesh x=4 with params/Dense_0/kernel pinned")
    with refused("FAILED_PRECONDITION", "there are no candidates: a plan of one mesh has no stages to search for"):
        plan.candidates()


def test_plans_pipelines_for_hosts_of_several_kinds():
    plan = _lowered(minka.Pipeline(num_micro_batches=4, layers=4, stages=2)).plan("v100:1x2,1080ti:1x2")
    assert {stage["device"] for stage in plan.json["stages"]} == {"v100-16gb", "gtx1080ti-11gb"}
    assert {row["kind"] for row in plan.candidates()["candidates"]} == {0, 1}
    assert plan.explain(stage=1).startswith("stage 1 ")


@pytest.mark.parametrize("method, cluster, code, message", [
    (minka.Shard(), "p3.16xlarg:1", "NOT_FOUND", "p3.16xlarge"),
    (minka.DataParallel(), "v100:1x3,1080ti:1x2", "INVALID_ARGUMENT", "minka.Pipeline plans stages on each"),
    (minka.Shard(), "local", "INVALID_ARGUMENT", r'cluster local is this machine: minka.init\(cluster="local"\)'),
    (minka.DataParallel(), "p3.16xlarge:8", "INVALID_ARGUMENT", "batch.* takes a multiple of 64"),
    (minka.Shard(peak_memory_bytes=1000), "p3.16xlarge:1", "RESOURCE_EXHAUSTED", "fits into 1000 bytes per device"),
])
def test_what_cannot_be_planned_for_a_cluster(method, cluster, code, message):
    with pytest.raises(minka.Error, match=message) as raised:
        _lowered(method).plan(cluster)
    assert raised.value.code == code


def test_a_plan_for_a_cluster_outlives_its_step():
    plan = _lowered(minka.Zero2()).plan("a100:1x4")
    gc.collect()
    assert plan.explain("params/*kernel").startswith("The best plans on mesh data=4 with params/Dense_0/kernel pinned")
    with refused("INVALID_ARGUMENT", "train_step.explain: pattern and operation ask two things; give one of them"):
        plan.explain("*", operation="*")
    with refused("NOT_FOUND", "*nothing*"):
        plan.explain("nothing*")


@pytest.mark.parametrize("method, cluster", [(minka.Shard(), "a100:1x4"), (minka.Pipeline(num_micro_batches=4, layers=4, stages=2), "v100:1x2,1080ti:1x2")])
def test_a_plan_for_a_cluster_runs_where_there_are_as_many_devices(devices, tmp_path, method, cluster):
    _lowered(method).plan(cluster).save(tmp_path / "plan.json")
    step, state, batches = make_program("mlp")
    planned = minka.parallelize(step, plan=tmp_path / "plan.json")
    losses = run(planned, state, batches)[1]
    np.testing.assert_allclose(losses, run(jax.jit(step), state, batches)[1], rtol=1e-4)
