"""What form an answer must have: vLLM's names, checked when the object is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from octavo.errors import InvalidRequestError

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_TEXTS = ("regex", "grammar", "whitespace_pattern")
_MOST_CHOICES = 16_384


@dataclass(slots=True)
class StructuredOutputsParams:
    """The one form that an answer must have.

    Args:
        json: a JSON schema, as an object or as text: the answer is JSON that it describes.
        regex: the whole answer matches it (syntax of the Rust crate `regex`; no look-around).
        choice: the answer is one of these texts.
        grammar: the answer follows a context-free grammar, in Lark's syntax or in GBNF.
        json_object: the answer is a JSON object.
        structural_tag: free text in which certain beginnings oblige to what follows; vLLM's object, or its text.
        disable_any_whitespace: JSON without any white space.
        disable_additional_properties: objects of a schema have no other properties than it lists.
        whitespace_pattern: what may stand between JSON's tokens, as a regular expression.

    Raises:
        InvalidRequestError: not exactly one form, or a value of the wrong type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.json_object is False:
            self.json_object = None
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise _wrong(f"exactly one of {', '.join(_KINDS)} must be given, got {', '.join(given) or 'none'}")
        for name in _TEXTS:
            value: object = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise _wrong(f"{name} must be a text that is not empty, got {value!r:.100}")
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            if getattr(self, name) not in (None, True, False):
                raise _wrong(f"{name} must be true or false, got {getattr(self, name)!r:.100}")
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (str, Mapping, bool)):
                raise _wrong(f"{name} must be an object or its JSON text, got {value!r:.100}")
        if self.choice is not None:
            self.choice = _choices(self.choice)


def read_structured_outputs(value: object) -> StructuredOutputsParams:
    """What a caller gave: the object itself, or its fields.

    Raises:
        InvalidRequestError: something else, or a field that it does not have.
    """
    if isinstance(value, StructuredOutputsParams):
        return value
    if not isinstance(value, Mapping):
        raise _wrong(f"it must be a StructuredOutputsParams or an object of its fields, got {value!r:.100}")
    given = cast("Mapping[str, Any]", value)
    unknown = sorted(given.keys() - {item.name for item in fields(StructuredOutputsParams)})
    if unknown:
        raise _wrong(f"there is no field {unknown[0]!r:.100}")
    return StructuredOutputsParams(**given)


def _choices(value: object) -> list[str]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _wrong(f"choice must be a list of texts, got {value!r:.100}")
    choices = list(cast("Sequence[object]", value))
    if not choices or len(choices) > _MOST_CHOICES:
        raise _wrong(f"choice must hold 1 to {_MOST_CHOICES} texts, got {len(choices)}")
    texts = [choice for choice in choices if isinstance(choice, str)]
    if len(texts) < len(choices) or not all(texts):
        raise _wrong("choice must hold texts that are not empty")
    return texts


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs: {message}", "structured_outputs")
