"""An engine process around a scripted engine; the script is in the model's name. Run by the supervisor's tests."""

import os
import sys
from dataclasses import dataclass

from octavo.config.engine import EngineConfig
from octavo.engine.process import main
from octavo.errors import ModelNotFoundError
from tests.serving.scripted_engine import ScriptedClient, endless


@dataclass
class Built:
    client: ScriptedClient


def build(config: EngineConfig) -> Built:
    kind = config.model.model
    if kind == "missing":
        raise ModelNotFoundError("no model here; looked in /nowhere")
    if kind == "bug":
        raise RuntimeError("something unforeseen")
    if kind == "crash":
        os._exit(3)
    if kind == "endless":
        return Built(ScriptedClient(endless, step_seconds=0.005))
    if kind and kind.startswith("paced:"):
        return Built(ScriptedClient(endless, step_seconds=float(kind.partition(":")[2])))
    return Built(ScriptedClient())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], build))
