"""`octavo replay`: gives an answer again from its receipt, and tells whether it has the same bits."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from octavo.cli.options import command_parser, read_config
from octavo.config.engine import SECTIONS, EngineConfig
from octavo.errors import InvalidRequestError

_CUSTOM_ID = "replay"


def run(arguments: Sequence[str]) -> int:
    """Replay; the answer goes to standard output. 0: it is the same."""
    parser = command_parser(
        "replay",
        "Give an answer again from its receipt, and tell whether every token is the same. A receipt comes with what "
        "was asked with deterministic: true; model and flags must be those of the server that gave it.",
        tuple(SECTIONS),
    )
    parser.add_argument(
        "-r", "--receipt", required=True, metavar="FILE", help="the receipt, or the answer that it came with (JSON)"
    )
    parsed = parser.parse_args(arguments)
    config = read_config(parsed)
    receipt = read_receipt(Path(parsed.receipt))
    answer, status = asyncio.run(_replay(config, receipt))
    print(json.dumps(answer, ensure_ascii=False))
    if status != 200:
        raise InvalidRequestError(str(answer.get("error", {}).get("message", answer)))
    if not answer["receipt"]["replayed"]:
        raise InvalidRequestError("the answer is another one, although its fingerprint is the same: please report it")
    print("the same: every token is as in the receipt", file=sys.stderr)
    return 0


def read_receipt(file: Path) -> dict[str, Any]:
    """The receipt in a file.

    Raises:
        InvalidRequestError: there is none.
    """
    try:
        found: Any = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"{file}: no receipt can be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    receipt: Any = found
    if isinstance(found, dict) and "receipt" in found:
        receipt = cast("dict[str, Any]", found)["receipt"]
    if not isinstance(receipt, dict) or not {"path", "request", "fingerprint", "tokens"} <= receipt.keys():
        raise InvalidRequestError(f"{file} holds no receipt; a request with deterministic: true is answered with one")
    return cast("dict[str, Any]", receipt)


async def _replay(config: EngineConfig, receipt: dict[str, Any]) -> tuple[dict[str, Any], int]:
    import msgspec

    from octavo.engine.supervisor import EngineSupervisor
    from octavo.serving.batches.call import Caller, LineRunner, endpoints_of
    from octavo.serving.batches.offline import unserved_app
    from octavo.serving.batches.schema import Line

    # What the model was called is no part of the answer's bits.
    body = {name: value for name, value in receipt["request"].items() if name != "model"}
    given = {**receipt, "request": body}
    async with unserved_app(config, EngineSupervisor(config)) as (app, _):
        if receipt["path"] not in endpoints_of(app):
            raise InvalidRequestError(f"receipt: there is no path {str(receipt['path'])[:64]!r}")
        raw = msgspec.Raw(msgspec.json.encode({**body, "receipt": given}))
        answer = await LineRunner(app, Caller(lag=0.0)).run(Line(_CUSTOM_ID, receipt["path"], raw))
    return json.loads(bytes(answer.body)), answer.status_code
