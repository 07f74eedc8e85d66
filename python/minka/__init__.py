"""Plans a JAX training step for many devices and runs it there.

    import minka

    minka.init(num_devices=8)

    @minka.parallelize(method=minka.Shard())
    def train_step(state, batch):
        loss, grads = minka.value_and_grad(loss_fn)(state.params, batch)
        return state.apply_gradients(grads=grads), loss

    state, loss = train_step(state, batch)

Importing it imports neither JAX nor the planner.
"""

from minka.arrays import DistributedArray
from minka.data_loader import DataLoader
from minka.errors import Error
from minka.jit_function import JitFunction, jit
from minka.marks import grad, mark_boundary, value_and_grad
from minka.methods import (AutoLayers, AutoStages, DataParallel, ManualStages, Pipeline, Shard, UniformStages, Zero2,
                           Zero3)
from minka.parallel_function import ParallelFunction, parallelize
from minka.session import init, shutdown

__all__ = ["AutoLayers", "AutoStages", "DataLoader", "DataParallel", "DistributedArray", "Error", "JitFunction", "ManualStages", "ParallelFunction",
           "Pipeline", "Shard", "UniformStages", "Zero2", "Zero3", "grad", "init", "jit", "mark_boundary", "parallelize", "shutdown",
           "value_and_grad"]
