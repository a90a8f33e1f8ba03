"""When an answer is taken to go in circles: vLLM's names and ranges."""

from dataclasses import dataclass

from octavo.errors import InvalidRequestError


@dataclass(slots=True)
class RepetitionDetectionParams:
    """When an answer is taken to repeat itself: it ends with `min_count` copies of a pattern of so many tokens.

    Args:
        max_pattern_size: longest pattern; 0 looks for none.
        min_pattern_size: shortest pattern; 0 is 1.
        min_count: copies, at least 2.

    Raises:
        InvalidRequestError: a value out of range.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 2

    def __post_init__(self) -> None:
        """Check every field."""
        for name, low, high in (("max_pattern_size", 0, 256), ("min_pattern_size", 0, 256), ("min_count", 2, 1 << 20)):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InvalidRequestError(
                    f"repetition_detection: {name} must be an integer from {low} to {high}, got {value!r:.100}",
                    "repetition_detection",
                )
        if self.max_pattern_size and self.min_pattern_size > self.max_pattern_size:
            raise InvalidRequestError(
                "repetition_detection: min_pattern_size must be at most max_pattern_size", "repetition_detection"
            )
