"""How flow's values look between processes: one version byte, then msgpack of known types and bounded size."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from octavo.errors import InternalError

# Raised by one whenever a message changes its meaning; both sides must agree.
VERSION = 1
# A prompt of a million tokens with its log-probabilities fits; a lying length does not.
MAX_BYTES = 256 * 1024 * 1024

Message = TypeVar("Message")


class WireError(InternalError):
    """A message that cannot be read: other version, unknown kind, damaged or too large."""


class WireEncoder:
    """Encodes messages of any type the decoder was built for. Not thread-safe: one per thread."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    def encode(self, message: object) -> bytes:
        """The message as bytes.

        Raises:
            WireError: it is larger than `MAX_BYTES`.
        """
        buffer = self._buffer
        buffer[:] = _TAG
        self._encoder.encode_into(message, buffer, len(_TAG))
        if len(buffer) > MAX_BYTES:
            size = len(buffer)
            self._buffer = bytearray()
            raise WireError(f"a message of {size} bytes; at most {MAX_BYTES} are sent")
        return bytes(buffer)


class WireDecoder(Generic[Message]):
    """Decodes one closed set of messages, and nothing else.

    Args:
        types: msgspec structs with distinct tags.
    """

    def __init__(self, types: Sequence[type[Message]]) -> None:
        union: object = types[0]
        for kind in types[1:]:
            union = union | kind  # type: ignore[operator]
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)  # type: ignore[arg-type]

    def decode(self, data: bytes) -> Message:
        """The message.

        Raises:
            WireError: the bytes are not such a message.
        """
        if len(data) > MAX_BYTES:
            raise WireError(f"a message of {len(data)} bytes; at most {MAX_BYTES} are taken")
        if data[:1] != _TAG:
            raise WireError(f"a message of wire version {data[0] if data else None}; this side speaks {VERSION}")
        try:
            return self._decoder.decode(memoryview(data)[1:])
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise WireError(f"a message that cannot be read: {error}") from error


_TAG = bytes([VERSION])
