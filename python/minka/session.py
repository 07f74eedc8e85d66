"""What minka.init starts: the devices that functions are parallelised for, and what was compiled for them."""

import atexit
import importlib.util
import json
import pathlib
import weakref
from dataclasses import dataclass, field

from minka import waiting
from minka.errors import failed_precondition, invalid_argument


@dataclass
class Session:
    num_devices: int
    hosts: str = ""  # path of the hosts file; empty: this machine
    progress: bool = True
    # By function, then by its static arguments. They end with the session, and the arrays' memory with the arrays.
    compiled: weakref.WeakKeyDictionary = field(default_factory=weakref.WeakKeyDictionary)


_session: Session | None = None


def _devices_of(hosts: str) -> int:
    try:
        return sum(worker["num_devices"] for worker in json.loads(pathlib.Path(hosts).read_text())["workers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise invalid_argument(f"minka.init: {hosts} is no hosts file (docs/guides/pipelines.md): {error}") from error


def init(num_devices: int | None = None, *, hosts: str | pathlib.Path | None = None, progress: bool = True) -> None:
    """Takes so many (virtual) devices of this machine, 8 unless told; or those of workers that run already.

    hosts: a hosts file as `minka run --hosts` takes it; mesh i runs on its worker i, and num_devices is those of all workers
        together unless told.
    progress: says on terminals and in notebooks what minka is at while it plans and compiles.
    Raises Error FAILED_PRECONDITION if that was done before and minka.shutdown was not called since, INVALID_ARGUMENT for a
    hosts file that cannot be read.
    """
    global _session
    if _session is not None:
        raise failed_precondition("minka.init was called before; call minka.shutdown() first")
    if num_devices is None:
        num_devices = 8 if hosts is None else _devices_of(str(hosts))
    if num_devices < 1:
        raise invalid_argument(f"minka.init: num_devices is {num_devices}; at least 1 is needed")
    _session = Session(num_devices, "" if hosts is None else str(hosts), progress)


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


def plugin_path() -> str:
    """The CPU plugin of this environment's package xla-cpu-pjrt; empty where there is none, and then minka searches."""
    found = importlib.util.find_spec("xla_plugins")
    for folder in (found.submodule_search_locations or ()) if found else ():
        plugin = pathlib.Path(folder) / "xla_cpu_pjrt" / "xla_cpu_pjrt.so"
        if plugin.exists():
            return str(plugin)
    return ""


def _end() -> None:
    global _session
    _session = None
    waiting.await_interrupted(at_exit=True)


atexit.register(_end)
