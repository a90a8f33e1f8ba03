"""The form that an answer must have, as a grammar: schemas, regular expressions, choices, grammars, structural tags."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.flow.structured_outputs import StructuredOutputsParams
from octavo.inputs.keywords import NAMED
from octavo.text.grammar import Grammar, check_regex, lark_regex, lark_text, lark_tree, repeat

_PARAM = "structured_outputs"
_DEEPEST = 100  # levels of a schema
# Enough to indent by; a model that has lost its way would write white space for ever.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
_LEAST = ("minItems", "minLength", "minProperties", "minContains")


def grammar_of(params: StructuredOutputsParams, longest: int) -> Grammar:
    """The grammar of an answer of this form.

    Args:
        longest: characters that an answer can have; what must be longer is refused.

    Raises:
        InvalidRequestError: a schema, tag or expression that is wrong, and where.
        UnsupportedError: a kind of structural tag that Octavo does not have.
    """
    if params.json is not None:
        return _schema_grammar(_parsed(params.json, "json"), params, longest)
    if params.json_object:
        return _schema_grammar({"type": "object"}, params, longest)
    if params.regex is not None:
        check_regex(params.regex, "regex")
        return Grammar(f"start: {lark_regex(params.regex)}")
    if params.choice is not None:
        return Grammar("start: " + " | ".join(map(lark_text, dict.fromkeys(params.choice))))
    if params.grammar is not None:
        return Grammar(lark_tree(params.grammar))
    assert params.structural_tag is not None
    return _tag_grammar(_parsed(params.structural_tag, "structural_tag"), params, longest)


def prepared_schema(schema: object, params: StructuredOutputsParams | None, longest: int, where: str) -> object:
    """A copy of a JSON schema as the library takes it.

    Raises:
        InvalidRequestError: it is nested too deeply, or asks for what no answer can have; names the place.
    """
    if isinstance(schema, bool):
        return schema
    closed = params is not None and params.disable_additional_properties
    copied = _copied(_object(schema, where), where, closed, longest, _DEEPEST)
    copy = cast("dict[str, object]", copied)
    options: dict[str, object] = {"whitespace_pattern": _WHITESPACE}
    if params is not None and params.whitespace_pattern is not None:
        check_regex(params.whitespace_pattern, "whitespace_pattern")
        options = {"whitespace_pattern": params.whitespace_pattern}
    if params is not None and params.disable_any_whitespace:
        options = {"whitespace_flexible": False}
    copy["x-guidance"] = options
    return copy


def _schema_grammar(schema: object, params: StructuredOutputsParams, longest: int) -> Grammar:
    return Grammar("start: @value", (("value", prepared_schema(schema, params, longest, "json")),))


def _copied(value: object, where: str, closed: bool, longest: int, depth: int) -> object:
    """A schema without its own settings for the library; patterns and sizes are looked at on the way."""
    if depth <= 0:
        raise _wrong(f"{where.split('.')[0]} is nested more than {_DEEPEST} levels deep")
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[object]", value)
        return [_copied(item, f"{where}[{i}]", closed, longest, depth - 1) for i, item in enumerate(items)]
    if not isinstance(value, Mapping):
        return value
    fields = cast("Mapping[str, object]", value)
    copy: dict[str, Any] = {}
    for key, item in fields.items():
        place = f"{where}.{key}"[:200]
        if key == "x-guidance":
            continue
        if key in NAMED and isinstance(item, Mapping):
            # These are names of an answer's own, whatever else they would mean.
            named = cast("Mapping[str, object]", item)
            copy[key] = {
                name: _copied(inside, f"{place}.{name}"[:200], closed, longest, depth - 2)
                for name, inside in named.items()
            }
            continue
        if key == "pattern" and isinstance(item, str):
            check_regex(item, place)
        if key in _LEAST and isinstance(item, (int, float)) and item > longest:
            raise _wrong(f"{place} is {item}, but an answer can have {longest} characters at most")
        # What stands in these is data, not schema.
        is_data = key in ("const", "enum", "default", "examples")
        copy[key] = item if is_data else _copied(item, place, closed, longest, depth - 1)
    if closed and (copy.get("type") == "object" or isinstance(copy.get("properties"), dict)):
        copy.setdefault("additionalProperties", False)
    return copy


def _tag_grammar(tag: object, params: StructuredOutputsParams, longest: int) -> Grammar:
    """Free text with tags: whenever a trigger has come, one of the tags that begin with it must follow."""
    tags = list(_tags(tag))
    triggers = list(dict.fromkeys(_triggers(tag)))
    if not tags or not triggers:
        raise _wrong("structural_tag needs at least one tag and one trigger")
    rules: list[str] = []
    parts: list[tuple[str, object]] = []
    for number, trigger in enumerate(triggers):
        bodies: list[str] = []
        for begin, schema, end in tags:
            # A tag belongs to the longest trigger that it begins with.
            if trigger != max((t for t in triggers if begin.startswith(t)), key=len, default=None):
                continue
            name = f"value{len(parts)}"
            parts.append((name, prepared_schema(schema, params, longest, "structural_tag.schema")))
            bodies.append(f"{lark_text(begin[len(trigger) :])} @{name} {lark_text(end)}")
        if bodies:
            rules.append(f"before{number}[lazy]: /(.|\\n)*/ {lark_text(trigger)}")
            rules.append(f"tag{number}: before{number} ({' | '.join(bodies)})")
    if len(parts) < len(tags):
        raise _wrong("structural_tag: every tag must begin with a trigger")
    names = [rule.split(":")[0] for rule in rules if rule.startswith("tag")]
    return Grammar("\n".join([f"start: {repeat(names)} rest", *rules, "rest: /(.|\\n)*/"]), tuple(parts))


def tag_schemas(params: StructuredOutputsParams) -> list[object]:
    """The schemas of a structural tag's tags; none where it is wrong, which is said when it is compiled."""
    if params.structural_tag is None:
        return []
    try:
        return [schema for _, schema, _ in _tags(_parsed(params.structural_tag, "structural_tag"))]
    except (InvalidRequestError, UnsupportedError):
        return []


def _tags(tag: object) -> Iterator[tuple[str, object, str]]:
    fields = _object(tag, "structural_tag")
    listed = _format(fields).get("tags") if "format" in fields else fields.get("structures")
    for number, item in enumerate(_list(listed, "structural_tag's tags")):
        entry = _object(item, f"structural_tag: tag {number}")
        content = entry.get("content")
        if content is not None:
            inner = _object(content, f"structural_tag: content of tag {number}")
            if inner.get("type") != "json_schema":
                raise UnsupportedError("structural_tag: only contents of type 'json_schema' are supported", _PARAM)
            schema: object = inner.get("json_schema")
        else:
            schema = entry.get("schema")
        begin, end = entry.get("begin"), entry.get("end")
        if not isinstance(begin, str) or not begin or not isinstance(end, str):
            raise _wrong(f"structural_tag: tag {number} needs the texts begin and end")
        yield begin, schema, end


def _triggers(tag: object) -> Iterator[str]:
    fields = _object(tag, "structural_tag")
    listed = (_format(fields) if "format" in fields else fields).get("triggers")
    for trigger in _list(listed, "structural_tag.triggers"):
        if not isinstance(trigger, str) or not trigger:
            raise _wrong("structural_tag.triggers must hold texts that are not empty")
        yield trigger


def _format(fields: Mapping[str, object]) -> Mapping[str, object]:
    form = _object(fields["format"], "structural_tag.format")
    if form.get("type") != "triggered_tags":
        raise UnsupportedError("structural_tag.format: only the type 'triggered_tags' is supported", _PARAM)
    for name in ("at_least_one", "stop_after_first"):
        if form.get(name):
            raise UnsupportedError(f"structural_tag.format.{name} is not supported", _PARAM)
    return form


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _wrong(f"{where} must be an object")
    return cast("Mapping[str, object]", value)


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, (list, tuple)):
        raise _wrong(f"{where} must be a list")
    return list(cast("Sequence[object]", value))


def _parsed(value: str | Mapping[str, Any], where: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"{where} is not JSON: {error}") from None


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs: {message}", _PARAM)
