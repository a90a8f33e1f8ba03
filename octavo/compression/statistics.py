"""What is remembered of the inputs of a product: as much as a method asks for, whatever the number of tokens."""

from dataclasses import dataclass

import numpy as np

from octavo.quantization.integers import Floats


@dataclass(frozen=True, slots=True)
class Wanted:
    """moments: X^T X [in, in], for GPTQ. sample: rows to keep, for AWQ's searches. Means and peaks are always there."""

    moments: bool = False
    sample: int = 0


class InputStatistics:
    """Sums over all inputs [T, in] that were added. Owned by the calibration of one layer."""

    def __init__(self, wanted: Wanted, width: int, tokens: int) -> None:
        self._stride = max(tokens // wanted.sample, 1) if wanted.sample else 0
        self._rows: list[Floats] = []
        self._count = 0
        self._magnitudes = np.zeros(width, np.float64)
        self._squares = np.zeros(width, np.float64)
        self.peaks: Floats = np.zeros(width, np.float32)  # max|X_j|
        self.moments: Floats | None = np.zeros((width, width), np.float32) if wanted.moments else None

    def add(self, x: Floats) -> None:
        """Inputs of some tokens, [T, in]."""
        if self._stride:
            first = -self._count % self._stride
            self._rows.append(x[first :: self._stride].copy())
        self._count += len(x)
        magnitudes = np.abs(x)
        np.maximum(self.peaks, magnitudes.max(axis=0), out=self.peaks)
        self._magnitudes += magnitudes.sum(axis=0, dtype=np.float64)
        self._squares += np.einsum("ti,ti->i", x, x)
        if self.moments is not None:
            self.moments += x.T @ x

    def divide(self, factors: Floats) -> None:
        """As if every input had been divided by `factors` [in]; the moments are not for that."""
        self._rows = [rows / factors for rows in self._rows]
        self._magnitudes /= factors
        self._squares /= np.square(factors)
        self.peaks = self.peaks / factors

    @property
    def mean(self) -> Floats:
        """mean|X_j|."""
        return (self._magnitudes / max(self._count, 1)).astype(np.float32)

    @property
    def mean_square(self) -> Floats:
        """mean X_j^2."""
        return (self._squares / max(self._count, 1)).astype(np.float32)

    @property
    def sample(self) -> Floats:
        """Rows from all over what was added, [rows, in]."""
        return np.concatenate(self._rows)
