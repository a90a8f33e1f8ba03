"""Decides whether a key's owner may send one more request: requests and tokens a minute, and requests at once."""

import time
from collections.abc import Callable

from octavo.errors import OverloadedError
from octavo.serving.keys import Owner
from octavo.serving.record import RequestRecord

_MINUTE = 60.0
_REMEMBERED = 4096  # owners; those without requests are forgotten first


class _Bucket:
    """So much a minute: filled steadily up to one minute's worth, and allowed to fall below nothing.

    A token bucket (RFC 2697, section 3, with one colour).
    """

    __slots__ = ("level", "limit", "updated")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = self.level = float(limit)
        self.updated = now

    def read(self, limit: int, now: float) -> float:
        """What is left. The limit may have been changed since."""
        if limit != self.limit:
            self.level += limit - self.limit
            self.limit = float(limit)
        self.level = min(self.limit, self.level + (now - self.updated) * self.limit / _MINUTE)
        self.updated = now
        return self.level

    def wait(self, wanted: float) -> float:
        """Seconds until that much is there."""
        return max(0.0, (wanted - self.level) * _MINUTE / self.limit)


class _Account:
    """One owner's use."""

    __slots__ = ("live", "requests", "tokens")

    def __init__(self) -> None:
        self.live: set[int] = set()  # numbers of requests under way
        self.requests: _Bucket | None = None
        self.tokens: _Bucket | None = None


class Quotas:
    """What every owner has used. Owner: the event loop.

    A request is admitted while there is something left; its own tokens are known at its end only. So those under way
    count with what they have used so far, and an owner can go over by no more than what one round of requests adds.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._records: dict[int, RequestRecord] = {}
        self._numbers = 0

    def enter(self, owner: Owner, record: RequestRecord, counted: bool) -> int:
        """Admit a request; `leave` must follow.

        Args:
            counted: it counts as one of `requests_per_minute`.

        Returns:
            What `leave` takes.

        Raises:
            OverloadedError: says which limit, and after how many seconds to come back.
        """
        account = self._account(owner.name)
        now = self._clock()
        most = owner.concurrent_requests
        if most is not None and len(account.live) >= most:
            raise OverloadedError(f"{most} requests of this key are under way, the most it may have at once")
        self._check_tokens(owner, account, now)
        if counted and owner.requests_per_minute is not None:
            account.requests = account.requests or _Bucket(owner.requests_per_minute, now)
            bucket = account.requests
            if bucket.read(owner.requests_per_minute, now) < 1:
                raise OverloadedError(
                    f"this key may send {owner.requests_per_minute} requests a minute", max(bucket.wait(1.0), 0.1)
                )
            bucket.level -= 1
        self._numbers += 1
        account.live.add(self._numbers)
        self._records[self._numbers] = record
        return self._numbers

    def leave(self, owner: Owner, number: int) -> None:
        """A request that was admitted has ended."""
        record = self._records.pop(number)
        account = self._accounts[owner.name]
        account.live.discard(number)
        if owner.tokens_per_minute is not None:
            account.tokens = account.tokens or _Bucket(owner.tokens_per_minute, self._clock())
            account.tokens.read(owner.tokens_per_minute, self._clock())
            account.tokens.level -= record.tokens

    def _check_tokens(self, owner: Owner, account: _Account, now: float) -> None:
        if owner.tokens_per_minute is None:
            return
        account.tokens = account.tokens or _Bucket(owner.tokens_per_minute, now)
        left = account.tokens.read(owner.tokens_per_minute, now)
        under_way = sum(self._records[number].tokens for number in account.live)
        if left - under_way < 1:
            raise OverloadedError(
                f"this key may use {owner.tokens_per_minute} tokens a minute, prompts and answers together",
                max(account.tokens.wait(1.0 + under_way), 0.1),
            )

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= _REMEMBERED:
                self._forget()
            account = self._accounts[name] = _Account()
        return account

    def _forget(self) -> None:
        now = self._clock()
        for name, account in list(self._accounts.items()):
            buckets = [bucket for bucket in (account.requests, account.tokens) if bucket is not None]
            if not account.live and all(bucket.read(int(bucket.limit), now) >= bucket.limit for bucket in buckets):
                del self._accounts[name]
