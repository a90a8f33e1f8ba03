"""Decides when an engine steps and when it takes messages, whether it lives in a process or in a thread."""

from collections.abc import Callable

from octavo.engine.client import EngineClient
from octavo.engine.profile import EngineProfile
from octavo.engine.transport import (
    CacheWasReset,
    Cancel,
    ChangeProfile,
    Mailbox,
    Outputs,
    PauseEngine,
    Ping,
    Pong,
    ProfileChanged,
    Refused,
    ResetPrefixCache,
    ResumeEngine,
    Shutdown,
    SleepChanged,
    SleepEngine,
    Submit,
    ToEngine,
    WakeEngine,
)
from octavo.errors import OctavoError, OverloadedError
from octavo.telemetry.log import logger

# A paused engine looks for deadlines that pass meanwhile.
_RESTING_SECONDS = 0.02


def serve(mailbox: Mailbox, client: EngineClient) -> None:
    """Take messages and run steps until `Shutdown`. Between two steps every waiting message is taken."""
    stats, resting, profile = client.stats(), False, EngineProfile()
    while True:
        busy = stats.running or stats.waiting
        if mailbox.wait((_RESTING_SECONDS if resting else 0.0) if busy else None):
            while (message := mailbox.receive()) is not None:
                if isinstance(message, Shutdown):
                    return
                if isinstance(message, ChangeProfile):
                    _change_profile(mailbox, profile, message.directory)
                else:
                    _apply(mailbox, client, message)
        profile.begin_turn()
        outputs = client.receive(0.0)
        before, stats = stats, client.stats()
        if profile.running:
            profile.end_turn(before, stats)
        resting = stats.paused and not outputs and stats.steps == before.steps
        if outputs or stats != before:
            mailbox.send(Outputs(outputs, stats))


def _apply(mailbox: Mailbox, client: EngineClient, message: ToEngine) -> None:
    match message:
        case Submit(request):
            try:
                client.submit(request)
            except OctavoError as error:
                retry_after = error.retry_after if isinstance(error, OverloadedError) else 0.0
                mailbox.send(Refused(request.id, type(error).__name__, str(error), retry_after))
        case Cancel(request_ids, streams):
            client.cancel(request_ids)
            client.cancel_streams(streams)
        case ResetPrefixCache():
            mailbox.send(CacheWasReset(client.reset_prefix_cache()))
        case PauseEngine(how):
            client.pause(how)
        case ResumeEngine():
            client.resume()
        case SleepEngine(level):
            _change_sleep(mailbox, client, lambda: client.sleep(level))
        case WakeEngine(parts):
            _change_sleep(mailbox, client, lambda: client.wake(parts))
        case Ping():
            mailbox.send(Pong())
        case _:
            logger("engine").warning("unexpected message %s", type(message).__name__)


def _change_profile(mailbox: Mailbox, profile: EngineProfile, directory: str | None) -> None:
    try:
        if directory is None:
            mailbox.send(ProfileChanged(*profile.stop()))
        else:
            profile.start(directory)
            mailbox.send(ProfileChanged())
    except OctavoError as error:
        mailbox.send(ProfileChanged(kind=type(error).__name__, message=str(error)))


def _change_sleep(mailbox: Mailbox, client: EngineClient, change: Callable[[], None]) -> None:
    try:
        change()
    except OctavoError as error:
        mailbox.send(SleepChanged(client.stats().asleep, type(error).__name__, str(error)))
    else:
        mailbox.send(SleepChanged(client.stats().asleep))
