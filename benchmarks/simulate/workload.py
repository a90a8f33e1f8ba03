"""What is asked of the simulated server, and when: lengths, arrivals, sessions that go on, tenants.

Lengths are log-normal, as those of collected chats nearly are, and cut off at `most`. The median is solved for, so
that the mean after the cut is the given one. `CHAT_PROMPT` and `CHAT_ANSWER` have the means published for ShareGPT
(161 and 338 tokens: Kwon et al., SOSP 2023, figure 11) and spreads which put about the published shares beyond 512
and 1,024.

Arrivals are Poisson, Gamma (gaps of a given coefficient of variation) or a Markov-modulated Poisson process (MMPP)
that switches between calm and burst. A session's next request comes a while after its last answer, as it does with
people and programs, so a slow server is asked less.
"""

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import erf, exp, log, sqrt

from octavo.flow.request import GenerationRequest, Sampling, Stopping

END = 2  # the token that ends an answer
LONGEST = 8192  # prompt and answer
_STREAMS = 64  # seeds of one request


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal length in tokens: mean after the cut at `most`, standard deviation of the logarithm."""

    mean: float
    sigma: float
    most: int

    @property
    def median(self) -> float:
        """Of the uncut distribution, by bisection: the mean of what is cut grows with it."""
        low, high = 1.0, float(self.most)
        for _ in range(60):
            middle = (low + high) / 2
            if _cut_mean(log(middle), self.sigma, log(self.most)) < self.mean:
                low = middle
            else:
                high = middle
        return low

    def drawer(self) -> Callable[[random.Random], int]:
        """Draws lengths."""
        mu, sigma, most = log(self.median), self.sigma, self.most
        return lambda rng: max(1, min(most, round(rng.lognormvariate(mu, sigma))))


def _cut_mean(mu: float, sigma: float, most: float) -> float:
    """Mean of min(exp(N(mu, sigma)), exp(most))."""

    def below(z: float) -> float:
        return (1 + erf(z / sqrt(2))) / 2

    z = (most - mu) / sigma
    return exp(mu + sigma * sigma / 2) * below(z - sigma) + exp(most) * (1 - below(z))


CHAT_PROMPT = Lengths(161, 1.4, 1024)
CHAT_ANSWER = Lengths(338, 0.9, 1024)


def poisson(rng: random.Random, rate: float) -> Iterator[float]:
    """Times of independent arrivals, `rate` a second."""
    return accumulate(iter(lambda: rng.expovariate(rate), None))


def gamma(rng: random.Random, rate: float, variation: float) -> Iterator[float]:
    """Times whose gaps have this coefficient of variation: 1 is Poisson, more comes in clumps."""
    shape = 1 / variation**2
    return accumulate(iter(lambda: rng.gammavariate(shape, 1 / (rate * shape)), None))


def bursts(
    rng: random.Random, rate: float, ratio: float = 8.0, share: float = 0.1, length: float = 60.0
) -> Iterator[float]:
    """MMPP of two states: `share` of the time in bursts of about `length` s, at `ratio` times the calm rate."""
    calm = rate / (1 - share + share * ratio)
    at, hot, until = 0.0, False, 0.0
    while True:
        while at >= until:
            hot = not hot
            until += rng.expovariate(1 / (length if hot else length * (1 - share) / share))
        gap = rng.expovariate(calm * ratio if hot else calm)
        if at + gap <= until:
            at += gap
            yield at
        else:  # the process forgets: begin anew in the next state
            at = until


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: `after` seconds after the last answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    kind: str = "chat"
    tenant: str = ""
    priority: int = 0
    after: float = 0.0


Session = Iterator[Turn]


class World:
    """Everything that sessions are made of. Fresh text is unlike any other: no two pieces share a block by chance.

    What a session says does not depend on when its answers come: whoever is served in another order is asked the same.
    """

    def __init__(
        self, seed: str, prompt: Lengths = CHAT_PROMPT, answer: Lengths = CHAT_ANSWER, apps: int = 40, first: int = 1000
    ) -> None:
        self.rng = random.Random(seed)  # of what comes in order: when sessions begin, and of which kind they are
        self._next_token = first
        self._prompt = prompt.drawer()
        self._answer = answer.drawer()
        self._systems = [self.text(round(self.rng.lognormvariate(log(600), 0.6))) for _ in range(apps)]
        self._tools = [self.text(round(self.rng.lognormvariate(log(1200), 0.3))) for _ in range(5)]

    @property
    def tenants(self) -> int:
        """Of `mixed`: each application, and one for each other kind."""
        return len(self._systems) + 3

    def text(self, length: int) -> tuple[int, ...]:
        """New text. Tokens are 32 bits wide, and come again only after four billion."""
        start = self._next_token
        if start + length >= 1 << 32:
            start = 1000
        self._next_token = start + length
        return tuple(range(start, start + length))

    def reply(self, rng: random.Random, scale: float = 1.0) -> tuple[int, ...]:
        """An answer. Its last token ends it."""
        return (*self.text(max(1, round(self._answer(rng) * scale)) - 1), END)

    def single(self) -> Session:
        """One question, under no common prefix."""
        rng = self._fork()
        return iter((Turn(self.text(self._prompt(rng)), self.reply(rng)),))

    def chat(self) -> Session:
        """A conversation of four turns on average, under one system prompt for all, with a person who thinks."""
        return self._chat(self._fork())

    def application(self) -> Session:
        """A single question to one of many applications with long system prompts, popular as 1, 1/2, 1/3, ..."""
        rng, apps = self._fork(), len(self._systems)
        app = min(apps, int((apps + 1) ** rng.random())) - 1
        prompt = self._systems[app] + self.text(self._prompt(rng))
        return iter((Turn(prompt, self.reply(rng, 0.4), "application", f"app{app}"),))

    def agent(self) -> Session:
        """Quick steps over a growing context, ten on average, with tools that answer now and then at length."""
        return self._agent(self._fork())

    def document(self) -> Session:
        """A batch job's long document, read once; it is less urgent by a level."""
        rng = self._fork()
        text = self.text(min(LONGEST - 256, round(rng.lognormvariate(log(3000), 0.5))))
        return iter((Turn(text, self.reply(rng, 0.2), "document", "batch", 1),))

    def mixed(self) -> Session:
        """One of all kinds: more than half of the requests are conversation."""
        return self.rng.choices((self.chat, self.application, self.agent, self.document), (50, 40, 6, 4))[0]()

    def _fork(self) -> random.Random:
        return random.Random(self.rng.random())

    def _chat(self, rng: random.Random) -> Session:
        known, after = self._systems[0], 0.0
        while True:
            prompt, answer = known + self.text(self._prompt(rng)), self.reply(rng)
            if len(prompt) + len(answer) > LONGEST // 2:
                return
            yield Turn(prompt, answer, "chat", "chat", 0, after)
            if rng.random() < 0.25:
                return
            known, after = prompt + answer, 30 * rng.lognormvariate(0.0, 0.9)

    def _agent(self, rng: random.Random) -> Session:
        known, after = rng.choice(self._tools) + self.text(self._prompt(rng)), 0.0
        while True:
            answer = self.reply(rng, 0.25)
            if len(known) + len(answer) > LONGEST:
                return
            yield Turn(known, answer, "agent", "agents", 0, after)
            if rng.random() < 0.1:
                return
            known = known + answer + self.text(min(4000, round(rng.lognormvariate(log(200), 1.0))))
            after = 2 * rng.lognormvariate(0.0, 0.8)


@dataclass(slots=True)
class Job:
    """A request that was handed out, and what it will be answered."""

    request: GenerationRequest
    turn: Turn
    session: Session


class Source:
    """Hands out requests at their times; sessions go on when their answers have come.

    Args:
        starts: when sessions begin, earliest first.
        limit: of requests; sessions under way are broken off then.
        told: how many tokens a client asks for at most when the answer has so many.
    """

    def __init__(
        self,
        starts: Iterable[tuple[float, Session]],
        limit: int,
        told: Callable[[int], int] = lambda answer: max(16, 1 << (answer - 1).bit_length()),
    ) -> None:
        self.handed_out = 0
        self._starts = iter(starts)
        self._limit = limit
        self._told = told
        self._coming: list[tuple[float, int, Turn, Session]] = []
        self._serial = 0
        self._begin_next()

    def due(self) -> float | None:
        """When the next request comes; None when none will, or none before another ends."""
        return self._coming[0][0] if self._coming and self.handed_out < self._limit else None

    def take(self) -> Job:
        """The request that is due."""
        at, serial, turn, session = heapq.heappop(self._coming)
        if serial == self._started:
            self._begin_next()
        number = self.handed_out
        self.handed_out += 1
        stopping = Stopping(self._told(len(turn.answer)), eos_token_ids=frozenset((END,)))
        request = GenerationRequest(
            str(number),
            turn.prompt,
            Sampling(temperature=0.0, seed=number * _STREAMS),
            stopping,
            arrival=at,
            priority=turn.priority,
            tenant=turn.tenant,
        )
        return Job(request, turn, session)

    def ended(self, job: Job, now: float) -> None:
        """A request has its answer."""
        turn = next(job.session, None)
        if turn is not None:
            self._push(now + turn.after, turn, job.session)

    def _begin_next(self) -> None:
        """The next session that begins is always among those that come."""
        while (start := next(self._starts, None)) is not None:
            at, session = start
            turn = next(session, None)
            if turn is not None:
                self._push(at, turn, session)
                self._started = self._serial
                return

    def _push(self, at: float, turn: Turn, session: Session) -> None:
        self._serial += 1
        heapq.heappush(self._coming, (at, self._serial, turn, session))


def number_of(seed: int) -> int:
    """Which request a seed belongs to."""
    return seed // _STREAMS


def sessions(times: Iterable[float], make: Callable[[], Session]) -> Iterator[tuple[float, Session]]:
    """A session at every time."""
    return ((at, make()) for at in times)


def backlog(turns: Sequence[Turn]) -> Iterator[tuple[float, Session]]:
    """Everything at once."""
    return ((0.0, iter((turn,))) for turn in turns)
