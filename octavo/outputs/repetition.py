"""Whether an answer has begun to repeat itself: the same few tokens, several times over, at its end."""

from octavo.flow.request import Repetition


class RepetitionWatch:
    """Watches one stream of tokens. Work per token is that of the longest pattern, however long the stream is."""

    __slots__ = ("_last", "_most", "_runs", "_wish")

    def __init__(self, wish: Repetition) -> None:
        self._wish = wish
        self._most = wish.longest
        self._last: list[int] = []
        # How many tokens in a row were the same as the one `size` before.
        self._runs = [0] * (wish.longest + 1)

    def push(self, token: int) -> bool:
        """Take a token; true when the text ends with as many copies of a pattern as are too many."""
        wish, last, runs = self._wish, self._last, self._runs
        count = len(last)
        found = False
        for size in range(wish.shortest, self._most + 1):
            runs[size] = runs[size] + 1 if size <= count and last[count - size] == token else 0
            found = found or runs[size] >= size * (wish.count - 1)
        last.append(token)
        if count >= 2 * self._most:
            del last[: self._most]
        return found
