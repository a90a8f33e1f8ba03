"""What of a JSON object that was cut off is complete."""

import json
from typing import Any, cast

_CLOSERS = {"{": "}", "[": "]"}


def object_of(text: str) -> dict[str, Any]:
    """The object that a text begins with: all of its values that are complete; {} where there is none.

    As Anthropic's clients read the arguments of a call that is still coming.
    """
    whole, closers, safe, safe_closers = _scan(text)
    for candidate in (text if whole else "", text + closers, text[:safe] + safe_closers):
        try:
            value: object = json.loads(candidate) if candidate else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return {}


def _scan(text: str) -> tuple[bool, str, int, str]:
    """Whether nothing is open at the end, what closes it there, and the last place where it can be cut with what closes
    it there."""
    stack: list[str] = []
    safe, safe_closers = 0, ""
    inside, escaped = False, False
    for index, character in enumerate(text):
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
        elif character == '"':
            inside = True
        elif character == ",":
            safe, safe_closers = index, "".join(reversed(stack))
        elif character in _CLOSERS:
            stack.append(_CLOSERS[character])
            safe, safe_closers = index + 1, "".join(reversed(stack))
        elif stack and character == stack[-1]:
            stack.pop()
            safe, safe_closers = index + 1, "".join(reversed(stack))
    return not stack, "".join(reversed(stack)), safe, safe_closers
