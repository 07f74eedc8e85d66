"""What minka.init starts: the devices that functions are parallelised for, and what was compiled for them."""

import atexit
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from minka import waiting
from minka.errors import failed_precondition, invalid_argument


@dataclass
class Session:
    num_devices: int
    hosts: str = ""  # path of the hosts file; empty: this machine
    progress: bool = True
    gpu: str = ""  # what its driver calls the devices; empty: virtual ones
    gpu_memory_bytes: int = 0
    calibration: str = ""  # of this machine, as `minka profile --json` prints it; empty: costs by roofline
    # By function, then by its static arguments. They end with the session, and the arrays' memory with the arrays.
    compiled: weakref.WeakKeyDictionary = field(default_factory=weakref.WeakKeyDictionary)


_session: Session | None = None


def _devices_of(hosts: str) -> int:
    try:
        return sum(worker["num_devices"] for worker in json.loads(pathlib.Path(hosts).read_text())["workers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise invalid_argument(f"minka.init: {hosts} is no hosts file (docs/guides/pipelines.md): {error}") from error


def _asked_of_command(cluster: str, *arguments: str, on_wait: Callable[[], None] = lambda: None) -> str:
    """What the command minka prints, which loads the plugin of the cluster in a process of its own."""
    command = [worker_binary(), *arguments, "--json", "--cluster", cluster]
    if plugin := plugin_path(is_gpu=cluster == "local-cuda"):
        command += ["--plugin", plugin]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asked:
        try:
            while True:
                try:
                    printed, errors = asked.communicate(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    on_wait()
        except BaseException:  # Ctrl-C in a notebook reaches this process alone
            asked.terminate()
            raise
    if asked.returncode:
        raise failed_precondition(f"minka.init: {errors.rpartition('minka: ')[2].strip()}")
    return printed


def _gpus() -> list[dict]:
    return json.loads(_asked_of_command("local-cuda", "devices"))["devices"]


def _calibration(cluster: str, num_devices: int, shows_progress: bool) -> str:
    progress = waiting.Progress("init", shows_progress)
    try:
        return _asked_of_command(cluster, "profile", "--cached", "--num-devices", str(num_devices),
                                 on_wait=lambda: progress.show("profile of this machine, made once in about three minutes"))
    finally:
        progress.clear()


def _warn_of_jax() -> None:
    """JAX takes three quarters of a GPU's memory when it is first used on it."""
    jax = sys.modules.get("jax")
    platforms = (jax.config.jax_platforms if jax else os.environ.get("JAX_PLATFORMS")) or "cuda"
    preallocates = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in ("false", "0")
    if preallocates and {"cuda", "gpu"} & set(platforms.split(",")):
        warnings.warn("JAX may hold most of the GPUs' memory, which minka's workers need: set JAX_PLATFORMS=cpu, or "
                      "XLA_PYTHON_CLIENT_PREALLOCATE=false, before JAX is used", stacklevel=3)


def init(num_devices: int | None = None, *, cluster: str = "local", hosts: str | pathlib.Path | None = None,
         cost_model: str = "roofline", progress: bool = True) -> None:
    """Takes so many devices of this machine, virtual ones (8 unless told) or GPUs (all); or those of workers that run already.

    cluster: "local" (this machine's cores) or "local-cuda" (its GPUs, whose plugin comes with jax[cuda13]).
    hosts: a hosts file as `minka run --hosts` takes it; mesh i runs on its worker i, and num_devices is those of all workers
        together unless told.
    cost_model: what plans are chosen by: "roofline", the rates that are known of such devices, or "measured" on this machine, which
        takes three minutes once and is kept in ~/.cache/minka (`minka profile` measures anew).
    progress: says on terminals and in notebooks what minka is at while it plans and compiles.
    Raises Error FAILED_PRECONDITION if that was done before and minka.shutdown was not called since, or there are no such GPUs;
    INVALID_ARGUMENT for a hosts file that cannot be read. Warns where JAX may hold the GPUs' memory.
    """
    global _session
    if _session is not None:
        raise failed_precondition("minka.init was called before; call minka.shutdown() first")
    if cluster not in ("local", "local-cuda"):
        raise invalid_argument(f'minka.init: cluster is {cluster!r}; there are "local" and "local-cuda" (minka.jit plans for others)')
    if cost_model not in ("roofline", "measured"):
        raise invalid_argument(f'minka.init: cost_model is {cost_model!r}; there are "roofline" and "measured"')
    gpus = []
    if cluster == "local-cuda":
        if hosts is not None:
            raise invalid_argument("minka.init: the workers of a hosts file run on cores so far; leave out hosts or local-cuda")
        gpus = _gpus()
        _warn_of_jax()
        if num_devices is not None and num_devices > len(gpus):
            raise failed_precondition(f"minka.init: num_devices is {num_devices}; this machine has {len(gpus)} GPUs")
    if num_devices is None:
        num_devices = len(gpus) or (8 if hosts is None else _devices_of(str(hosts)))
    if num_devices < 1:
        raise invalid_argument(f"minka.init: num_devices is {num_devices}; at least 1 is needed")
    calibration = _calibration(cluster, num_devices, progress) if cost_model == "measured" else ""
    _session = Session(num_devices, "" if hosts is None else str(hosts), progress, calibration=calibration)
    if gpus:
        _session.gpu, _session.gpu_memory_bytes = gpus[0]["kind"], gpus[0]["memory_bytes"]


def shutdown() -> None:
    """Ends what minka.init started; arrays that are still held stay readable. Functions are compiled anew after the next init.

    Waits for what goes on in the background after Ctrl-C.
    """
    global _session
    _session = None
    waiting.await_interrupted()


def is_started() -> bool:
    return _session is not None


def current() -> Session:
    if _session is None:
        raise failed_precondition("minka has no devices yet; call minka.init(num_devices=...) first")
    return _session


def worker_binary() -> str:
    """The command minka, which lies beside this file."""
    return str(pathlib.Path(__file__).parent / "bin" / "minka")


def plugin_path(is_gpu: bool = False) -> str:
    """The plugin of this environment's package xla-cpu-pjrt or jax-cuda13-pjrt; empty where there is none, and then minka searches."""
    package, pattern = ("jax_plugins", "xla_cuda*/xla_cuda_plugin.so") if is_gpu else ("xla_plugins", "xla_cpu_pjrt/xla_cpu_pjrt.so")
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        if plugins := sorted(pathlib.Path(folder).glob(pattern)):
            return str(plugins[-1])
    return ""


def _end() -> None:
    global _session
    _session = None
    waiting.await_interrupted(at_exit=True)


atexit.register(_end)
