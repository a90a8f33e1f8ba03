"""What a request may ask of this model: lengths, ids within the vocabulary, counts."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.errors import InvalidRequestError, PromptTooLongError
from octavo.flow.request import Sampling, Stopping
from octavo.flow.sampling_params import SamplingParams

_MOST_STOPS = 128
_LONGEST_STOP = 4096  # characters of all stop texts together
_MOST_IDS = 65_536  # entries of a list of ids or biases
_LARGEST_PRIORITY = 1 << 63
_LONG_SALT = 64  # characters


def check_priority(priority: object) -> None:
    """Raises:
    InvalidRequestError: it is no 64-bit integer.
    """
    number = priority if isinstance(priority, int) and not isinstance(priority, bool) else _LARGEST_PRIORITY
    if not -_LARGEST_PRIORITY <= number < _LARGEST_PRIORITY:
        raise InvalidRequestError(f"priority must be a 64-bit integer, got {priority!r}", "priority")


def short_salt(salt: str) -> str:
    """A salt of any length as a short one. Nobody's short salt can equal it: whatever is that long is hashed itself."""
    if len(salt) <= _LONG_SALT:
        return salt
    return "blake2b-" + hashlib.blake2b(salt.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Fixed for a model once it runs.

    Args:
        max_model_len: longest prompt plus output, in tokens.
        vocab: number of logits; ids are below it.
        max_logprobs: most log-probabilities a position; -1 allows the whole vocabulary.
        max_n: most answers to one prompt.
        shorten_output: a max_tokens that the context has no room for is shortened rather than refused, as vLLM's
            offline class does.
    """

    max_model_len: int
    vocab: int
    max_logprobs: int = 20
    max_n: int = 1024
    shorten_output: bool = False

    def check_prompt(self, ids: Sequence[int], output: int | None = None) -> None:
        """Not empty, room for one token of output, every id in the vocabulary.

        Args:
            output: tokens that are asked for, as the error tells; None is what there is room for.

        Raises:
            InvalidRequestError: otherwise; PromptTooLongError names both lengths.
        """
        if not ids:
            raise InvalidRequestError("the prompt is empty: it has no tokens", "prompt")
        if len(ids) >= self.max_model_len:
            raise self.too_long(str(len(ids)), output or 1)
        self.check_ids_in_vocabulary(ids)

    def check_ids_in_vocabulary(self, ids: Sequence[int]) -> None:
        """Raises:
        InvalidRequestError: one is not.
        """
        if min(ids) < 0 or max(ids) >= self.vocab:
            wrong = next(token_id for token_id in ids if not 0 <= token_id < self.vocab)
            raise InvalidRequestError(
                f"prompt has token id {wrong}; this model's ids are 0 to {self.vocab - 1}", "prompt"
            )

    def too_long(self, prompt: str, output: int) -> PromptTooLongError:
        """The error for a prompt of so many tokens with so many more requested."""
        return PromptTooLongError(
            f"this model's maximum context length is {self.max_model_len} tokens, but the prompt has {prompt} tokens "
            f"and {output} more {'is' if output == 1 else 'are'} requested; "
            "shorten the prompt or ask for fewer tokens",
            "prompt",
        )

    def output_length(self, prompt_len: int, params: SamplingParams) -> int:
        """`max_tokens`, resolved against what the context has room for.

        Raises:
            PromptTooLongError: prompt and requested tokens exceed the context.
            InvalidRequestError: min_tokens exceeds what is left.
        """
        room = self.max_model_len - prompt_len
        wanted = room if params.max_tokens is None else params.max_tokens
        if wanted > room:
            if not self.shorten_output:
                raise self.too_long(str(prompt_len), wanted)
            wanted = room
        if params.min_tokens > wanted:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but after {prompt_len} tokens of prompt the answer can have "
                f"at most {wanted}",
                "min_tokens",
            )
        return wanted

    def check_params(self, params: SamplingParams) -> None:
        """What SamplingParams cannot know: counts and ids against this model.

        Raises:
            InvalidRequestError: naming the field and the value.
        """
        if params.n > self.max_n:
            raise InvalidRequestError(f"n must be at most {self.max_n}, got {params.n}", "n")
        self._check_logprobs(params.logprobs, "logprobs")
        self._check_logprobs(params.prompt_logprobs, "prompt_logprobs")
        stop = params.stop or ()
        if len(stop) > _MOST_STOPS or sum(map(len, stop)) > _LONGEST_STOP:
            raise InvalidRequestError(
                f"stop may have {_MOST_STOPS} texts of {_LONGEST_STOP} characters together, got {len(stop)} of "
                f"{sum(map(len, stop))}",
                "stop",
            )
        self.check_ids(params.stop_token_ids or (), "stop_token_ids")
        self.check_ids(params.allowed_token_ids or (), "allowed_token_ids")
        self.check_ids(params.logit_bias or (), "logit_bias")

    def check_drawable(self, sampling: Sampling, stopping: Stopping) -> None:
        """Before `min_tokens` are reached no stop token may be drawn: something else must be left to draw.

        Raises:
            InvalidRequestError: nothing is.
        """
        if not stopping.min_tokens:
            return
        ends = stopping.stop_token_ids if stopping.ignore_eos else stopping.stop_token_ids | stopping.eos_token_ids
        allowed = sampling.allowed_token_ids
        if ends.issuperset(allowed) if allowed else len(ends) >= self.vocab:
            raise InvalidRequestError(
                f"min_tokens is {stopping.min_tokens}, but every token that may be drawn is a stop token", "min_tokens"
            )

    @property
    def most_logprobs(self) -> int:
        """Most log-probabilities of a position that may be asked for."""
        return self.vocab if self.max_logprobs == -1 else min(self.max_logprobs, self.vocab)

    def _check_logprobs(self, count: int | None, name: str) -> None:
        if count is None or (count == -1 and self.max_logprobs == -1):
            return
        if count == -1 or count > self.most_logprobs:
            wanted = "the whole vocabulary" if count == -1 else str(count)
            raise InvalidRequestError(
                f"{name} must be at most {self.most_logprobs} (--max-logprobs), got {wanted}", name
            )

    def check_ids(self, ids: Iterable[int], name: str) -> None:
        """Refuse ids that are none of the vocabulary's, or too many.

        Raises:
            InvalidRequestError: names the first.
        """
        count = 0
        for token_id in ids:
            count += 1
            if not 0 <= token_id < self.vocab:
                raise InvalidRequestError(
                    f"{name} has token id {token_id}; this model's ids are 0 to {self.vocab - 1}", name
                )
        if count > max(_MOST_IDS, self.vocab):
            raise InvalidRequestError(f"{name} has {count} entries, the vocabulary has {self.vocab}", name)
