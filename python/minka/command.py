"""The command `minka` of an installed package."""

import os
import sys

from minka import session


def main() -> None:
    """Becomes the executable, which takes the CPU plugin of this environment unless another one is named."""
    plugin = session.plugin_path()
    if plugin:
        os.environ.setdefault("MINKA_PJRT_PLUGIN", plugin)
    binary = session.worker_binary()
    os.execv(binary, [binary, *sys.argv[1:]])
