"""Every error that Octavo raises on purpose, and the HTTP status each one becomes.

OctavoError
├── UserError                      the caller can fix it
│   ├── InvalidRequestError        400  also a ValueError, as vLLM's callers expect
│   │   └── PromptTooLongError     400
│   ├── UnknownModelError          404
│   ├── ConfigError                -    also a ValueError; start-up stops with one line
│   ├── ModelNotFoundError         -    no such directory, file or hub name
│   ├── CheckpointError            -    a model file is damaged, incomplete or lies
│   └── UnsupportedError           400  a feature this build does not have
├── OverloadedError                429
├── EngineAsleepError              503
├── EngineDeadError                503
│   └── EngineReturningError       503  it is being started again
├── DeadlineExceededError          504
└── InternalError                  500  a bug in Octavo
"""


class OctavoError(Exception):
    """Base of all errors raised on purpose."""

    status = 500


class UserError(OctavoError):
    """Something the caller can fix; shown as one line, never as a traceback."""

    status = 400


class InvalidRequestError(UserError, ValueError):
    """A request parameter is wrong.

    Args:
        message: what is wrong and what would be right.
        param: name of the offending field, when there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(InvalidRequestError):
    """Prompt plus requested tokens exceed the context; names both numbers."""


class UnknownModelError(UserError):
    """The request names a model that this server does not serve."""

    status = 404


class ConfigError(UserError, ValueError):
    """A configuration value is wrong or two of them exclude each other."""


class ModelNotFoundError(UserError):
    """No model where the name points; the message lists where was looked."""

    status = 404


class CheckpointError(UserError):
    """A model file is damaged, incomplete or contradicts itself; the message names the tensor or field."""


class UnsupportedError(UserError):
    """A real feature that Octavo does not have (yet); never silently ignored.

    Args:
        message: what there is not, and what to do instead.
        param: name of the field that asks for it, when there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class OverloadedError(OctavoError):
    """Too much is queued. `retry_after` is in seconds."""

    status = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineAsleepError(OctavoError):
    """The engine sleeps and takes no requests until it is woken."""

    status = 503


class EngineDeadError(OctavoError):
    """The engine process is gone and could not be brought back."""

    status = 503


class EngineReturningError(EngineDeadError):
    """The engine process is gone and is being started again. `retry_after` is in seconds."""

    retry_after = 3.0


class DeadlineExceededError(OctavoError):
    """The time that a request, or the server, allowed has passed before anything was answered."""

    status = 504


class InternalError(OctavoError):
    """An invariant of Octavo does not hold: a bug, worth a report."""
