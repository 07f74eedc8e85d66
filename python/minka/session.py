"""What minka.init starts: the devices that functions are parallelised for, and what was compiled for them."""

import atexit
import importlib.util
import pathlib
import weakref
from dataclasses import dataclass, field

from minka.errors import failed_precondition, invalid_argument


@dataclass
class Session:
    num_devices: int
    # By function, then by its static arguments. They end with the session, and the arrays' memory with the arrays.
    compiled: weakref.WeakKeyDictionary = field(default_factory=weakref.WeakKeyDictionary)


_session: Session | None = None


def init(num_devices: int = 8) -> None:
    """Takes so many (virtual) devices of this machine.

    Raises Error FAILED_PRECONDITION if that was done before and minka.shutdown was not called since.
    """
    global _session
    if _session is not None:
        raise failed_precondition("minka.init was called before; call minka.shutdown() first")
    if num_devices < 1:
        raise invalid_argument(f"minka.init: num_devices is {num_devices}; at least 1 is needed")
    _session = Session(num_devices)


def shutdown() -> None:
    """Ends what minka.init started; arrays that are still held stay readable. Functions are compiled anew after the next init."""
    global _session
    _session = None


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


atexit.register(shutdown)
