"""Finds keywords of a JSON schema that are misspelt: a schema with them allows more than its author thinks."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import cast

# JSON Schema 2020-12 and, where they differ, the drafts before it.
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # objects of schemas by name
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "contentSchema"),
)
_PLAIN = (
    *("$schema", "$id", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    *("$comment", "$vocabulary", "id", "type", "enum", "const", "default", "examples", "title", "description"),
    *("format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "required"),
    *("minProperties", "maxProperties", "dependentRequired", "dependencies", "readOnly", "writeOnly", "deprecated"),
    *("contentEncoding", "contentMediaType"),
)
# Of OpenAPI and of clients: they say nothing about values, and are near to some that do.
_HARMLESS = ("example", "nullable", "discriminator", "xml", "externalDocs", "name", "strict", "version", "x-guidance")
_KNOWN = frozenset((*NAMED, *_LISTED, *_SINGLE, *_PLAIN))
_BY_LETTERS = {name.lower().strip("$"): name for name in sorted(_KNOWN)}
_DEEPEST = 100
_ALIKE = 0.8
_MOST = 8


def misspelt(schema: object, place: str) -> list[str]:
    """A line for each keyword that is none but looks like one; a few at most."""
    return list(islice(_found(schema, place, _DEEPEST), _MOST))


def _found(schema: object, place: str, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or not depth:
        return
    fields = cast("Mapping[str, object]", schema)
    for key, value in fields.items():
        at = f"{place}.{key}"[:200]
        meant = _meant(key)
        if meant is not None:
            yield f"{at[:80]} is no keyword of JSON Schema and has no effect; {meant!r} is one"
        elif key in NAMED and isinstance(value, Mapping):
            for name, inside in cast("Mapping[str, object]", value).items():
                yield from _found(inside, f"{at}.{name}"[:200], depth - 1)
        elif key in _LISTED and isinstance(value, (list, tuple)):
            for number, inside in enumerate(cast("Sequence[object]", value)):
                yield from _found(inside, f"{at}[{number}]", depth - 1)
        elif key in _SINGLE:
            yield from _found(value, at, depth - 1)


def _meant(key: str) -> str | None:
    """The keyword that an unknown one looks like."""
    if key in _KNOWN or key in _HARMLESS or len(key) > 64:
        return None
    letters = key.lower().replace("_", "").replace("-", "").strip("$")
    if letters in _BY_LETTERS:
        return _BY_LETTERS[letters]
    near = get_close_matches(letters, _BY_LETTERS, 1, _ALIKE)
    return _BY_LETTERS[near[0]] if near else None
