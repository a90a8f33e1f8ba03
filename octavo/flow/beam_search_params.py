"""What a caller may ask of beam search: vLLM's names and defaults, checked when the object is made."""

import math
from dataclasses import dataclass
from typing import Literal, cast

from octavo.errors import InvalidRequestError
from octavo.flow.request import Beam
from octavo.flow.sampling_params import SamplingParams


@dataclass(slots=True)
class BeamSearchParams:
    """How to search for the likeliest continuations of one prompt.

    Args:
        beam_width: beams that are followed, and answers that are given.
        max_tokens: longest answer.
        ignore_eos: go on to max_tokens in any case.
        temperature: accepted for compatibility; nothing is drawn.
        length_penalty: an answer's log-probability is divided by its length to this power: above 0 favours long ones.
        include_stop_str_in_output: the end-of-text token's text is part of an answer.
        early_stopping: True: stop with as many answers as beams; False: as soon as improvement is unlikely; "never":
            when it is impossible.

    Raises:
        InvalidRequestError: a value out of range (it is a ValueError too); `param` names the field.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("beam_width", "max_tokens"):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidRequestError(f"{name} must be an integer from 1, got {value!r}", name)
        penalty = cast(object, self.length_penalty)
        if not isinstance(penalty, (int, float)) or isinstance(penalty, bool) or not math.isfinite(penalty):
            raise InvalidRequestError(f"length_penalty must be a number, got {penalty!r}", "length_penalty")
        if self.early_stopping not in (True, False, "never"):
            raise InvalidRequestError(
                f"early_stopping must be true, false or 'never', got {self.early_stopping!r}", "early_stopping"
            )

    @property
    def beam(self) -> Beam:
        """The search, as the engine takes it."""
        return Beam(self.beam_width, float(self.length_penalty), self.early_stopping)

    def sampling_params(self) -> SamplingParams:
        """Everything else about the answers."""
        return SamplingParams(
            n=self.beam_width,
            temperature=0.0,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )
