"""What an experiment hands over: words, tables and pictures, and how tables are printed."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

Number = float | int


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text already. The first column is read, the others compared."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """For a page."""
        marks = ["---", *["---:"] * (len(self.heads) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, marks, *self.rows)]
        return "\n".join(lines) + "\n"

    def plain(self) -> str:
        """For a terminal."""
        widths = [max(len(cells[column]) for cells in (self.heads, *self.rows)) for column in range(len(self.heads))]
        lines = [
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            for cells in (self.heads, *self.rows)
        ]
        return "\n".join(line.rstrip() for line in lines) + "\n"


@dataclass(frozen=True, slots=True)
class Series:
    """A line, or the bars of one colour: `x` are numbers for lines, names for bars."""

    name: str
    x: Sequence[Number | str]
    y: Sequence[Number]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture. `limits` are horizontal lines with a name."""

    name: str  # of the file
    title: str
    x: str
    y: str
    series: Sequence[Series]
    kind: Literal["lines", "steps", "bars"] = "lines"
    log: str = ""  # axes: "", "x", "y" or "xy"
    limits: Sequence[tuple[float, str]] = ()
    values: str = ""  # format of the figures written over bars


@dataclass(frozen=True, slots=True)
class Finding:
    """One experiment's result. `figures` are its numbers by name, for other programs."""

    name: str
    title: str
    words: str
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    figures: dict[str, Number] = field(default_factory=dict)


def as_json(findings: Sequence[Finding]) -> str:
    """Everything, for other programs."""
    return json.dumps([asdict(finding) for finding in findings], indent=1)
