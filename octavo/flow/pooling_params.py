"""vLLM's `PoolingParams`: what a caller may say of how a text is pooled, checked when it is said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError

_MOST_RETURNED = 65_536


@dataclass
class PoolingParams:
    """What is wanted of hidden states; None: as the model says.

    Attributes:
        dimensions: length that an embedding is cut to (Matryoshka models only).
        use_activation: normalize an embedding, or squash classes and scores; `normalize`, `softmax` and `activation`
            are older names.
        task: "embed", "classify", "score", "token_embed" or "token_classify"; where a method has one, it wins.
        step_tag_id: token whose states are returned, of models that are pooled by steps.
        returned_token_ids: which of a state's numbers are returned, of such models.
        truncate_prompt_tokens: most tokens of a text, -1 for as many as the model takes; longer ones are cut.
        truncation_side: which end is cut off: "right" (the default) or "left".
        skip_reading_prefix_cache: has no effect on the answer, and none on encoders.

    Raises:
        InvalidRequestError: a value is out of its range.
        UnsupportedError: extra_kwargs.
    """

    dimensions: int | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    softmax: bool | None = None
    activation: bool | None = None
    task: str | None = None
    step_tag_id: int | None = None
    returned_token_ids: Sequence[int] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """As the constructor does; fields may have been changed since.

        Raises:
            InvalidRequestError, UnsupportedError: see the class.
        """
        for name, least in (("dimensions", 1), ("step_tag_id", 0), ("truncate_prompt_tokens", -1)):
            value: object = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise InvalidRequestError(f"{name} must be a whole number of at least {least}, got {value!r}", name)
        if self.truncate_prompt_tokens == 0:
            raise InvalidRequestError("truncate_prompt_tokens must be at least 1, or -1 for the model's length", _CUT)
        for name in ("use_activation", "normalize", "softmax", "activation"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise InvalidRequestError(f"{name} must be true or false, got {value!r}", name)
        if self.truncation_side not in (None, "left", "right"):
            raise InvalidRequestError(f"truncation_side must be left or right, got {self.truncation_side!r}", _SIDE)
        if self.returned_token_ids is not None and len(self.returned_token_ids) > _MOST_RETURNED:
            raise InvalidRequestError(f"returned_token_ids may have {_MOST_RETURNED} entries", "returned_token_ids")
        if self.extra_kwargs:
            raise UnsupportedError("extra_kwargs is not supported; leave it out", "extra_kwargs")

    @property
    def activates(self) -> bool | None:
        """Whether the answer is normalized or squashed, if that is said."""
        given = (self.use_activation, self.normalize, self.activation, self.softmax)
        return next((value for value in given if value is not None), None)

    def clone(self) -> "PoolingParams":
        """A copy."""
        return PoolingParams(**vars(self))


_CUT = "truncate_prompt_tokens"
_SIDE = "truncation_side"
