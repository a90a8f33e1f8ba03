"""What is fuzzed: each target takes any bytes, and fails where the code under it does not keep its word.

Targets need no fuzzer: `test_fuzz_targets.py` runs each on its seeds; an input that made one fail becomes a seed.
"""

import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import OctavoError
from octavo.model.checkpoint.gguf import read_gguf
from octavo.model.checkpoint.gguf_writer import GgufWriter
from octavo.model.checkpoint.mapped import MappedFile
from octavo.model.checkpoint.safetensors import read_safetensors
from octavo.ops.weight import StoredTensor
from octavo.outputs.answer.feed import AnswerEvent
from octavo.outputs.answer.formats import FORMATS
from octavo.outputs.answer.parser import AnswerParser, AnswerShape, joined, read_answer
from octavo.outputs.answer.reasoning import REASONING
from octavo.quantization.format import FORMATS as STORED
from octavo.quantization.format import stored_bytes
from octavo.text.chat_template import ChatTemplate
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.gguf_vocabulary import tokenizer_from_metadata
from octavo.text.messages import as_parts, as_text, normalized
from octavo.text.tokenizer import LibraryTokenizer
from tests.fuzz.routes import PATHS, ask
from tests.model.files import gguf_bytes, safetensors_bytes, string, with_header
from tests.text.vocabularies import small_llama_metadata

_SCHEMAS = {"f": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}
# A list of each length is cut off wherever it wants.
_CUTS = 6
_TEMPLATES = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% for p in m.content %}{{ p.type }}:{{ p.text }};{% endfor %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ m.role.upper() + m.content.strip() }}"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
    "{% endfor %}{% endfor %}",
)


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds` are where a fuzzer begins; `words` are what it puts in besides bytes."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[str, ...] = ()


def fuzz_answer(data: bytes) -> None:
    """The events of a stream, joined, are those of the whole text, for every format and every cut."""
    head, text = data[: _CUTS + 2], data[_CUTS + 2 :].decode("utf-8", "replace")
    if len(head) < _CUTS + 2:
        return
    tools = (None, *FORMATS.values())[head[0] % (len(FORMATS) + 1)]
    reasoning = (None, *REASONING.values())[head[1] % (len(REASONING) + 1)]
    shape = AnswerShape(reasoning, bool(head[1] & 64), tools, _SCHEMAS, most_calls=1 if head[1] & 128 else None)
    whole = read_answer(text, shape)
    parser, at, events = AnswerParser(shape), 0, list[AnswerEvent]()
    number = 0
    while at < len(text):
        length = head[2 + number % _CUTS] % 17 or 1
        events += parser.push(text[at : at + length])
        at, number = at + length, number + 1
    streamed = joined([*events, *parser.finish()])
    assert streamed == whole, (streamed, whole)
    calls = [event.number for event in whole if event.kind == "call"]
    assert calls == list(range(len(calls))), whole
    assert shape.most_calls is None or len(calls) <= shape.most_calls, whole


@cache
def _tokenizer() -> LibraryTokenizer:
    return tokenizer_from_metadata(small_llama_metadata())


def fuzz_detokenizer(data: bytes) -> None:
    """Every cut of the ids gives the text of the whole, and that is the one of the tokenizer."""
    if not data:
        return
    tokenizer, flags = _tokenizer(), data[0]
    # Two bytes an id, and now and then one that no token has.
    ids = [
        int.from_bytes(data[at : at + 2], "little") % (tokenizer.vocab_size + 4) for at in range(1, len(data) - 1, 2)
    ]
    skip, spaces = bool(flags & 1), bool(flags & 2)
    shown = tokenizer.special_ids if flags & 4 else frozenset[int]()
    whole = IncrementalDetokenizer(tokenizer, skip, spaces, shown)
    expected = whole.push(ids) + whole.finish()
    stream, step, text = IncrementalDetokenizer(tokenizer, skip, spaces, shown), (flags >> 3) + 1, ""
    for at in range(0, len(ids), step):
        text += stream.push(ids[at : at + step])
    text += stream.finish()
    assert text == expected, (text, expected)
    if spaces and not shown:
        plain = text.removeprefix(" ") if tokenizer.strips_first_space else text
        assert plain == tokenizer.decode(ids, skip_special_tokens=skip), (plain, ids)


@cache
def _templates() -> tuple[ChatTemplate, ...]:
    return tuple(ChatTemplate(source) for source in _TEMPLATES)


def fuzz_messages(data: bytes) -> None:
    """Messages are refused, or come out in one form that stays as it is; then every template can take them."""
    try:
        messages = json.loads(data)
    except (ValueError, RecursionError):
        return
    before = repr(messages)
    try:
        form = normalized(messages)
    except OctavoError as error:
        _check_refusal(error)
        return
    assert repr(messages) == before, "the caller's messages were changed"
    assert normalized(form) == form
    for message in form:
        content: object = message["content"]
        assert isinstance(content, str) or all(set(part) == {"type", "text"} for part in message["content"]), message
        assert as_text(as_parts(message))["content"] == as_text(message)["content"]
    for template in _templates():
        try:
            assert isinstance(template.render(messages), str)
        except OctavoError as error:
            _check_refusal(error)


def _check_refusal(error: OctavoError) -> None:
    assert error.status == 400, error


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp(prefix="octavo-fuzz-")) / "model"


def _mapped(data: bytes) -> MappedFile:
    # A new file each time: one that is mapped must not be cut.
    path = _file()
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return MappedFile(path)


def _check_tensors(tensors: Sequence[StoredTensor], size: int) -> None:
    total = 0
    for tensor in tensors:
        assert tensor.data.nbytes == stored_bytes(STORED[tensor.format], tensor.shape), tensor.name
        total += tensor.data.nbytes
    assert total <= size


def fuzz_safetensors(data: bytes) -> None:
    """A file is refused, or its tensors lie in it one beside the other."""
    try:
        tensors = read_safetensors(_mapped(data))
    except OctavoError:
        return
    _check_tensors(list(tensors.values()), len(data))


def fuzz_gguf(data: bytes) -> None:
    """A file is refused, or its tensors lie in it; its vocabulary is refused or gives a tokenizer that works."""
    try:
        contents = read_gguf(_mapped(data))
    except OctavoError:
        return
    _check_tensors(list(contents.tensors.values()), len(data))
    try:
        tokenizer = tokenizer_from_metadata(contents.metadata)
    except OctavoError:
        return
    ids = tokenizer.encode("a b\n\U0001f600")
    assert all(0 <= number < tokenizer.vocab_size for number in ids)
    tokenizer.decode(ids)


def fuzz_bodies(data: bytes) -> None:
    """Every body of every route is answered: 200, or a refusal that says why; nothing fails inside."""
    if not data:
        return
    path = PATHS[data[0] % len(PATHS)]
    status, answer = ask(path, data[1:])
    assert status < 500, (path, status, answer[:500])
    assert b"InternalError" not in answer, (path, answer[:500])
    if status >= 400:
        error: Any = json.loads(answer)
        told = error["error"]["message"]
        assert isinstance(told, str), answer
        assert told, answer


def _bodies() -> tuple[bytes, ...]:
    chat = '"messages":[{"role":"user","content":"x"}]'
    tool = '{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}'
    bodies = {
        "/v1/chat/completions": (
            f'{{{chat},"stream":true,"n":2,"logprobs":true,"top_logprobs":2,"stop":["l"]}}',
            f'{{{chat},"tools":[{tool}],"tool_choice":"required"}}',
            f'{{{chat},"response_format":{{"type":"json_schema","json_schema":{{"name":"s","schema":{{}}}}}}}}',
            f'{{{chat},"logit_bias":{{"5":1}},"bad_words":["a"],"repetition_detection":{{"min_count":2}}}}',
            '{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":'
            '{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"text"}]}]}',
        ),
        "/v1/completions": (
            '{"prompt":["a",[1,2]],"echo":true,"logprobs":1,"best_of":2,"suffix":""}',
            '{"prompt":"x","structured_outputs":{"regex":"a+"},"prompt_logprobs":1,"seed":-1,"receipt":{}}',
            '{"prompt":[5],"logits_rules":[{"ban":[1]}],"min_tokens":2,"use_beam_search":true,"deterministic":true}',
        ),
        "/v1/messages": (
            '{"model":"tiny","max_tokens":3,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user",'
            '"content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}],"thinking":{"type":"enabled"}}',
            '{"model":"tiny","max_tokens":3,"stream":true,"messages":[{"role":"user","content":"x"}],'
            '"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}}',
        ),
        "/v1/messages/count_tokens": ('{"model":"tiny","messages":[{"role":"user","content":"x"}]}',),
        "/v1/responses": (
            '{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}],"stream":true,'
            '"text":{"format":{"type":"text"}},"truncation":"auto","instructions":"i","store":false}',
            '{"input":"x","tools":[{"type":"function","name":"f","parameters":{}}],"include":[],"reasoning":{}}',
        ),
        "/generate": ('{"prompt":"x","stream":true,"temperature":0.5,"n":2}',),
        "/tokenize": ('{"prompt":"x","return_token_strs":true}', '{"messages":[{"role":"user","content":"x"}]}'),
        "/detokenize": ('{"tokens":[1,2,256]}',),
        "/v1/batches": ('{"input_file_id":"file-1","endpoint":"/v1/completions","completion_window":"24h"}',),
    }
    return tuple(bytes([PATHS.index(path)]) + body.encode() for path, listed in bodies.items() for body in listed)


def _answers() -> tuple[bytes, ...]:
    texts = {
        "hermes": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        "llama3_json": '{"name": "f", "parameters": {"a": "x"}}; {"name": "f", "parameters": {}}',
        "mistral": '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS] [{"name": "f", "arguments": {}}]',
        "pythonic": "[f(a=1, b=['x', {\"c\": None}]), f()]",
        "deepseek_v3": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>',  # noqa: RUF001
        "gemma": "<start_function_call>call:f{a:2,b:<escape>x<escape>}<end_function_call>",
        "qwen3_coder": "<tool_call><function=f><parameter=a>\n1\n</parameter></function></tool_call>",
        "openai": "<|channel|>analysis<|message|>x<|end|><|start|>assistant to=functions.f<|channel|>commentary"
        '<|message|>{"a": 1}<|call|>',
        "granite": '<think>x</think>ok<|tool_call|>[{"name": "f", "arguments": {}}]',
    }
    names = [*FORMATS]
    seeds = [
        bytes([names.index(name) + 1, number % 6, 1, 2, 3, 5, 7, 16]) + text.encode()
        for number, (name, text) in enumerate(texts.items())
    ]
    # What fuzzing found. A header that is cut in its first letters.
    seeds.append(bytes([names.index("openai") + 1, 0, 1, 1, 1, 1, 1, 1]) + b'to=functions.f<|message|>{"a": 1}')
    return tuple(seeds)


def _safetensors() -> tuple[bytes, ...]:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.uint16)}
    return safetensors_bytes(tensors), with_header(b'{"__metadata__":{"format":"pt"}}')


def _gguf() -> tuple[bytes, ...]:
    """One with tensors, and one with a whole vocabulary."""
    scalars = [("general.alignment", 4, struct.pack("<I", 32)), ("f", 6, struct.pack("<f", 1.0)), ("t", 7, b"\1")]
    listed = [("n", 9, struct.pack("<IQIQI", 9, 1, 4, 1, 7)), ("s", 8, string("x"))]
    tensors = [("a", (4, 2), 0, bytes(32)), ("b", (32,), 8, bytes(34))]
    _file().unlink(missing_ok=True)
    writer = GgufWriter(_file(), small_llama_metadata(), ())
    writer.finish()
    return gguf_bytes(scalars + listed, tensors), gguf_bytes(version=2), _file().read_bytes()


def _fields() -> tuple[str, ...]:
    text = b" ".join(_bodies()).decode("utf-8", "replace")
    return tuple(sorted({f'"{word}"' for word in text.split('"') if word.isidentifier()}))


TARGETS: dict[str, Target] = {
    "answer": Target(
        fuzz_answer,
        _answers(),
        (
            *sorted({mark for form in FORMATS.values() for mark in (*form.markers, *form.hidden)}),
            *("<think>", "</think>", "<|channel|>", "<|message|>", '{"name": "f", "arguments": ', "f(", "null"),
        ),
    ),
    "detokenizer": Target(fuzz_detokenizer, (b"\0" + bytes(range(64)), b"\x0b\xf3\0\xa2\0\x82\0\xaf\0\1\0\2\0")),
    "messages": Target(
        fuzz_messages,
        (
            b'[{"role":"user","content":"x"}]',
            b'[{"role":"user","content":[{"type":"text","text":"x"},"y",{"type":"refusal","refusal":"z"}],"name":null}]',
            b'[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\\"a\\":1}"}}]}]',
        ),
        ('"role"', '"content"', '"tool_calls"', '"function"', '"arguments"', '"text"', "null", "[{", "}]"),
    ),
    "gguf": Target(fuzz_gguf, _gguf(), ("tokenizer.ggml.tokens", "general.alignment", "GGUF")),
    "safetensors": Target(
        fuzz_safetensors, _safetensors(), ('"dtype":"F32"', '"shape":[', '"data_offsets":[', '"BF16"')
    ),
    "bodies": Target(fuzz_bodies, _bodies(), (*_fields(), "null", "true", "-1", "1e999", "[[", '"\\ud800"')),
}


def clean() -> None:
    """Remove what the targets wrote."""
    path = _file()
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        os.rmdir(path.parent)
