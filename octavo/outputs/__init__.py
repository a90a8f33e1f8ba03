"""Where scripts written for vLLM import results from; the rest of this package is imported by its modules."""

from importlib import import_module

_HOME = dict.fromkeys(("CompletionOutput", "RequestOutput"), "octavo.api.outputs")


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'octavo.outputs' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
