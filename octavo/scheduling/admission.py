"""Which requests are taken on, and what a refused one is told."""

from octavo.errors import ConfigError, DeadlineExceededError, InvalidRequestError, OverloadedError, PromptTooLongError
from octavo.flow.request import GenerationRequest
from octavo.scheduling.budget import SchedulerLimits

_RETRY_SECONDS = (1.0, 60.0)


def check_limits(limits: SchedulerLimits) -> None:
    """Refuse limits under which nothing, or not everything, could run.

    Raises:
        ConfigError: says which and why.
    """
    if min(limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len) < 1:
        raise ConfigError("max_num_seqs, max_num_batched_tokens and max_model_len must be at least 1")
    if limits.enable_chunked_prefill:
        return
    if limits.max_num_batched_tokens < limits.max_model_len:
        raise ConfigError(
            f"without chunked prefill a step must hold the longest sequence: max_num_batched_tokens "
            f"{limits.max_num_batched_tokens} is less than max_model_len {limits.max_model_len}"
        )
    if limits.target_itl is not None:
        raise ConfigError("a target for inter-token latency needs chunked prefill: it is the chunks that are sized")


class Admission:
    """Checks requests and learns how fast places become free. Mutable; the Scheduler owns it.

    Args:
        capacity: most tokens of one sequence that the cache can hold.
        cache: the cache's size in words, for messages.
    """

    def __init__(self, limits: SchedulerLimits, capacity: int, cache: str) -> None:
        check_limits(limits)
        self._limits = limits
        self._capacity = capacity
        self._cache = cache
        self._interval = 0.0  # seconds between two finished sequences, a running mean
        self._last_finish = 0.0

    def check(self, request: GenerationRequest, waiting: int, tokens: int) -> None:
        """Refuse what cannot be served.

        Args:
            waiting: requests of which nothing has started yet, beyond those that free slots are there for.
            tokens: of the prompts of which nothing has started yet.

        Raises:
            InvalidRequestError: there is nothing to continue.
            PromptTooLongError: it could never run; the message has the numbers.
            OverloadedError: too much waits.
        """
        self._check_request(request)
        if request.resumed:
            return
        limits, prompt = self._limits, len(request.prompt_token_ids)
        if limits.max_waiting is not None and waiting >= limits.max_waiting:
            raise OverloadedError(
                f"{waiting} requests wait already; the limit is {limits.max_waiting} (max_waiting)",
                self.retry_after(waiting),
            )
        most = limits.max_waiting_tokens
        if most is not None and tokens and tokens + prompt > most:
            raise OverloadedError(
                f"prompts of {tokens} tokens wait already and this one has {prompt}; the limit is {most} "
                "(max_waiting_tokens)",
                self.retry_after(waiting),
            )

    def _check_request(self, request: GenerationRequest) -> None:
        prompt, limits = len(request.prompt_token_ids), self._limits
        if not prompt or request.n < 1:
            raise InvalidRequestError("a request needs at least one prompt token and one sample", "prompt")
        if request.beam is not None and request.n > request.beam.width:
            raise InvalidRequestError(f"{request.n} answers are more than {request.beam.width} beams have", "n")
        if prompt + min(1, request.stopping.max_tokens) > limits.max_model_len:
            raise PromptTooLongError(
                f"the prompt has {prompt} tokens; prompt and answer together may have {limits.max_model_len} "
                "(max_model_len)",
                "prompt",
            )
        if prompt > self._capacity:
            raise PromptTooLongError(
                f"the prompt has {prompt} tokens; the whole KV cache ({self._cache}) holds {self._capacity} of one "
                "sequence",
                "prompt",
            )

    def deadlines(self, request: GenerationRequest, arrived: float, now: float) -> tuple[float | None, float | None]:
        """When a request must have ended, and when it must have its first token: clock readings, None for never.

        The server's limits hold for every request; a request can only ask for less time.

        Raises:
            DeadlineExceededError: one of them has passed already, before anything was told of it.
        """
        limits = self._limits
        end = _earliest(arrived, request.timeout, limits.request_timeout)
        first = _earliest(arrived, request.ttft_deadline, limits.ttft_deadline)
        for deadline, name in ((end, "timeout"), (first, "ttft_deadline")):
            if deadline is not None and deadline <= now and not request.resumed:
                raise DeadlineExceededError(
                    f"the request came {now - arrived:.3f} s after it was made; its {name} had passed by then"
                )
        return end, first

    def finished(self, now: float, idle: bool) -> None:
        """A sequence came to its end. After an idle time the next interval does not count."""
        if self._last_finish:
            weight = 0.1 if self._interval else 1.0
            self._interval += weight * (now - self._last_finish - self._interval)
        self._last_finish = 0.0 if idle else now

    def retry_after(self, waiting: int) -> float:
        """Seconds until half of the queue is gone, at the present rate."""
        least, most = _RETRY_SECONDS
        return min(most, max(least, self._interval * waiting / 2))


def _earliest(arrived: float, *seconds: float | None) -> float | None:
    return min((arrived + limit for limit in seconds if limit is not None), default=None)
