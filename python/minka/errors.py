"""What minka raises."""


class Error(RuntimeError):
    """Something that the user or the environment caused; the message names the culprit and the way out.

    code: "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAVAILABLE" or
    "INTERNAL".
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def invalid_argument(message: str) -> Error:
    return Error("INVALID_ARGUMENT", message)


def failed_precondition(message: str) -> Error:
    return Error("FAILED_PRECONDITION", message)
