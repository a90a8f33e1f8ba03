"""Whom a request belongs to when tenants share the machine: the body's `user`, else the key it came with."""

import hashlib

from starlette.requests import Request

from octavo.serving.record import record_of

_LONGEST = 64  # characters of a name; longer ones are told apart by their hash


def tenant_of(request: Request, user: str | None) -> str:
    """The tenant's name; empty for requests that tell nothing.

    The owner of a key from a key file is "key:" and the owner's name, whatever user the body names: else anybody could
    multiply their share. Other keys appear as "key:" and a part of their SHA-256.
    """
    record = record_of(request)
    if record.tenant:
        return record.tenant
    if owner := record.owner.name:
        return f"key:{owner}"
    if user and user.startswith("key:"):  # nobody is another one's key
        return f"user:{_digest(user)}"
    if user:
        return user if len(user) <= _LONGEST else f"user:{_digest(user)}"
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    found = key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "").strip()
    return f"key:{_digest(found)}" if found else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
