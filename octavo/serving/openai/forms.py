"""Which form a body wants its answer to have: `response_format`, `structured_outputs`, or what older clients send."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.structured_outputs import StructuredOutputsParams, read_structured_outputs
from octavo.inputs.keywords import misspelt
from octavo.inputs.structured import tag_schemas
from octavo.serving.naming import Naming
from octavo.serving.openai.schema import MOST_WARNINGS, GenerationFields

_OLD_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


def read_form(body: GenerationFields) -> tuple[StructuredOutputsParams | None, list[str]]:
    """The form, and what should be said about how it was asked for.

    Raises:
        InvalidRequestError: two forms at once, or one that is wrong; names the field.
        UnsupportedError: a kind that Octavo does not have.
    """
    warnings: list[str] = []
    old = {name: getattr(body, name) for name in _OLD_NAMES if getattr(body, name) is not None}
    found = {
        "response_format": _response_format(body.response_format),
        "structured_outputs": body.structured_outputs,
        **{name: {_OLD_NAMES[name]: value} for name, value in old.items()},
    }
    given = {name: value for name, value in found.items() if value is not None}
    if len(given) > 1:
        raise InvalidRequestError(f"{' and '.join(given)} exclude each other: an answer has one form", list(given)[-1])
    if old:
        warnings.append(f"{next(iter(old))} is an old name: use structured_outputs.{_OLD_NAMES[next(iter(old))]}")
    if body.guided_decoding_backend is not None:
        warnings.append("guided_decoding_backend has no effect: there is one backend")
    if not given:
        if body.guided_whitespace_pattern is not None:
            warnings.append("guided_whitespace_pattern has no effect without a form")
        return None, warnings
    name, value = next(iter(given.items()))
    if body.guided_whitespace_pattern is not None and isinstance(value, Mapping):
        value = {"whitespace_pattern": body.guided_whitespace_pattern, **cast("Mapping[str, Any]", value)}
    if body.use_beam_search:
        raise UnsupportedError(f"{name} does not go with use_beam_search: beams are chosen by the model alone", name)
    if body.ignore_eos:
        warnings.append("ignore_eos has no effect: the answer ends where its form ends")
    try:
        params = read_structured_outputs(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error).replace("structured_outputs", name, 1), name) from None
    return params, [*warnings, *_bad_words(params, body.bad_words or (), name), *_misspelt(params, name)]


def _bad_words(params: StructuredOutputsParams | None, words: Sequence[str], name: str) -> Iterator[str]:
    """What becomes of words that must not appear in a form.

    Raises:
        InvalidRequestError: the form leaves nothing without one.
    """
    if params is None or not words:
        return
    if params.choice is None:
        yield f"bad_words has no effect where the form ({name}) leaves nothing else"
    elif all(any(word in text for word in words) for text in params.choice):
        raise InvalidRequestError(f"bad_words: every choice of {name} has one, so nothing can be answered", "bad_words")


def _misspelt(params: StructuredOutputsParams | None, name: str) -> list[str]:
    if params is None:
        return []
    tags = tag_schemas(params)
    if tags:
        found = (line for number, tag in enumerate(tags) for line in misspelt(tag, f"{name}.tags[{number}].schema"))
        return list(islice(found, MOST_WARNINGS))
    schema = params.json
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):  # refused later on
            return []
    return misspelt(schema, name)


def form_naming(body: GenerationFields) -> Naming:
    """What errors about a form, which are those of `structured_outputs`, call the field that asks for it."""
    form = body.response_format
    asked = {
        "structured_outputs": body.structured_outputs,
        "response_format": form if form and form.get("type", "text") != "text" else None,
        **{name: getattr(body, name) for name in _OLD_NAMES},
        "tools": getattr(body, "tools", None),
    }
    name = next((name for name, value in asked.items() if value is not None), "structured_outputs")
    return Naming({"structured_outputs": name})


def _response_format(form: object) -> dict[str, Any] | None:
    """OpenAI's object as the fields of StructuredOutputsParams; None asks for nothing."""
    if form is None:
        return None
    fields = cast("Mapping[str, Any]", form)
    kind = fields.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        described = fields.get("json_schema")
        schema = cast("Mapping[str, Any]", described).get("schema") if isinstance(described, Mapping) else None
        if schema is None:
            raise InvalidRequestError("response_format: json_schema.schema is missing", "response_format")
        return {"json": schema}
    if kind == "structural_tag":
        return {"structural_tag": fields}
    raise UnsupportedError(
        f"response_format: type {str(kind)[:64]!r} is not supported; 'text', 'json_object', 'json_schema' and "
        "'structural_tag' are",
        "response_format",
    )
