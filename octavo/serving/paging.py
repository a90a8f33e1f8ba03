"""Which part of a list a request asks for."""

from dataclasses import dataclass

from starlette.requests import Request

from octavo.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Page:
    """At most `limit`, behind the one with the id `after`; the newest first unless `ascending`."""

    limit: int
    after: str | None = None
    ascending: bool = False


def read_page(request: Request, default: int, most: int) -> Page:
    """What the query's `limit`, `after` and `order` ask for.

    Raises:
        InvalidRequestError: one of them is not what it should be.
    """
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError(f"order must be 'asc' or 'desc', got {order[:32]!r}", "order")
    limit = min(whole_number(request, "limit", default, 1), most)
    return Page(limit, request.query_params.get("after"), order == "asc")


def whole_number(request: Request, name: str, default: int, least: int) -> int:
    """A whole number of the query.

    Raises:
        InvalidRequestError: it is none, or below `least`.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) < least:
        raise InvalidRequestError(f"{name} must be a whole number, got {text[:32]!r}", name)
    return int(text)
