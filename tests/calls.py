"""What a piece of work costs as a count, which no load of the machine changes."""

import sys
from collections.abc import Callable


def count_calls(work: Callable[[], object]) -> int:
    """Functions, Python's and C's, that are called meanwhile, up to the call that ends the count."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
