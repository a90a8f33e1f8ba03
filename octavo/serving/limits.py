"""How much a request may bring: bytes of its body, depth of its JSON, answers and prompts it asks for."""

from itertools import accumulate

from starlette.requests import Request

from octavo.errors import InvalidRequestError
from octavo.serving.errors import MediaTypeError, TooLargeError
from octavo.serving.openai.schema import GenerationFields
from octavo.serving.record import record_of

MAX_DEPTH = 64  # of JSON; a deep body costs stack wherever it is walked
MAX_PROMPTS = 1024  # of one text completion
MAX_CHOICES = 128  # n; OpenAI's bound
MAX_STOPS = 64  # stop strings
MAX_WORDS = 1024  # bad_words; each is tokenized
MAX_ANSWERS = 8192  # prompts times n: every one becomes a sequence
MAX_ENTRIES = 1 << 20  # prompts times entries of lists about tokens: each prompt takes its own to the engine
MAX_TOKENIZED = 1 << 21  # characters that are tokenized only to be counted
LONG_TEXT = 16_384  # characters or bytes; work on more than this goes to a thread


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a JSON request.

    Raises:
        MediaTypeError: it says that it is something else, or compressed.
        TooLargeError: more than `limit` bytes; no more than that is ever held.
        InvalidRequestError: it has no end that it promised, or is empty.
    """
    kind = media_type(request) or "application/json"
    if kind != "application/json" and not kind.endswith("+json"):
        raise MediaTypeError(
            f"the body came as {kind[:64]!r}, and JSON is expected: send a JSON object with the header "
            "'Content-Type: application/json' (curl: -H 'Content-Type: application/json')"
        )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise MediaTypeError(f"the body came in Content-Encoding {coding[:64]!r}; send the body uncompressed")
    too_large = TooLargeError(f"the body is larger than {limit} bytes, the most this server takes (--max-body-size)")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    record = record_of(request)
    async for chunk in request.stream():
        size += len(chunk)
        record.bytes_received = size
        if size > limit:
            raise too_large
        chunks.append(chunk)
    body = b"".join(chunks)
    if not body:
        raise InvalidRequestError("the body is empty; a JSON object was expected")
    return body


def media_type(request: Request) -> str:
    """What the body is by its own account, without parameters; "" where nothing is said."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def body_bytes(request: Request) -> int:
    """Length of the body that `read_body` has read."""
    return record_of(request).bytes_received


def check_depth(data: bytes) -> None:
    """Refuse JSON nested deeper than `MAX_DEPTH`.

    Raises:
        InvalidRequestError: it is.
    """
    # Brackets inside strings count here too, so many of them only lead to the exact look.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise InvalidRequestError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _depth(data: bytes) -> int:
    # Escapes go first, in this order: what is then left of a quote opens or closes a string.
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NOT_STRUCTURE)
    brackets = b"".join(plain.split(b'"')[::2])
    return max(accumulate(_STEP[bracket] for bracket in brackets), default=0)


_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_counts(body: GenerationFields, prompts: int = 1) -> None:
    """Refuse requests whose cost is out of proportion to their size.

    Raises:
        InvalidRequestError: too many answers, stop strings, words, token ids or prompts.
    """
    n = max(body.n or 1, body.best_of or 1)
    if n > MAX_CHOICES:
        raise InvalidRequestError(f"n must be at most {MAX_CHOICES}, got {n}", "n")
    stops = body.stop if isinstance(body.stop, list) else []
    for name, texts, most in (("stop", stops, MAX_STOPS), ("bad_words", body.bad_words or [], MAX_WORDS)):
        if len(texts) > most:
            raise InvalidRequestError(f"{name} may hold at most {most} strings, got {len(texts)}", name)
    if prompts > MAX_PROMPTS:
        raise InvalidRequestError(f"at most {MAX_PROMPTS} prompts can be sent at once, got {prompts}", "prompt")
    if prompts * n > MAX_ANSWERS:
        raise InvalidRequestError(f"{prompts} prompts with n={n} are more than {MAX_ANSWERS} answers", "n")
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        entries = len(getattr(body, name) or ())
        if prompts * entries > MAX_ENTRIES:
            raise InvalidRequestError(
                f"{name} has {entries} entries for each of {prompts} prompts; send fewer prompts at once", name
            )
