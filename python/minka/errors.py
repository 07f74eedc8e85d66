"""What minka raises."""


class Error(RuntimeError):
    """Something that the user or the environment caused; the message names the culprit and the way out.

    code: "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAVAILABLE",
    "ABORTED" (a check that found a difference) or "INTERNAL".
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


# What the command line's flags, which the planner's messages name, are called here.
_IN_PYTHON = {
    "(--loss names that result of a module)": "(minka.mark_boundary ends one)",
    "--memory-limit": "peak_memory_bytes",
    "--per-micro-batch": "per_micro_batch=True",
    "--pipeline-layers N parts it into N": "layers=N parts it into N",
    "--pin": "pins",
    "--remat": "remat",
}


def of_status(code: str, message: str) -> Error:
    """What the extension raises."""
    for flag, name in _IN_PYTHON.items():
        message = message.replace(flag, name)
    return Error(code, message)


def invalid_argument(message: str) -> Error:
    return Error("INVALID_ARGUMENT", message)


def failed_precondition(message: str) -> Error:
    return Error("FAILED_PRECONDITION", message)
