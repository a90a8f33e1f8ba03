"""Decides when an engine steps and when it takes messages, whether it lives in a process or in a thread."""

from octavo.engine.client import EngineClient
from octavo.engine.transport import (
    CacheWasReset,
    Cancel,
    Mailbox,
    Outputs,
    Refused,
    ResetPrefixCache,
    Shutdown,
    Submit,
    ToEngine,
)
from octavo.errors import OctavoError
from octavo.telemetry.log import logger


def serve(mailbox: Mailbox, client: EngineClient) -> None:
    """Take messages and run steps until `Shutdown`. Between two steps every waiting message is taken."""
    stats = client.stats()
    while True:
        busy = stats.running or stats.waiting
        if mailbox.wait(0.0 if busy else None):
            while (message := mailbox.receive()) is not None:
                if isinstance(message, Shutdown):
                    return
                _apply(mailbox, client, message)
        outputs = client.receive(0.0)
        before, stats = stats, client.stats()
        if outputs or stats != before:
            mailbox.send(Outputs(outputs, stats))


def _apply(mailbox: Mailbox, client: EngineClient, message: ToEngine) -> None:
    match message:
        case Submit(request):
            try:
                client.submit(request)
            except OctavoError as error:
                mailbox.send(Refused(request.id, type(error).__name__, str(error)))
        case Cancel(request_ids):
            client.cancel(request_ids)
        case ResetPrefixCache():
            mailbox.send(CacheWasReset(client.reset_prefix_cache()))
        case _:
            logger("engine").warning("unexpected message %s", type(message).__name__)
