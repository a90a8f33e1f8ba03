"""Draws charts, as SVG for the page and as PNG."""

import io
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.simulate.findings import Chart

# Okabe and Ito's colours: told apart by everyone.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 14.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "octavo",  # the same picture is the same file
}


def draw(chart: Chart, folder: Path) -> str:
    """Write `<name>.png` and `<name>.svg`; returns the SVG."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(8.4, 4.4), layout="constrained")
        (_bars if chart.kind == "bars" else _lines)(axes, chart)
        axes.set_title(chart.title)
        axes.set_xlabel(chart.x)
        axes.set_ylabel(chart.y)
        for height, name in chart.limits:
            axes.axhline(height, color="#aa3333", linewidth=1.0, linestyle=(0, (4, 3)))
            place = {"xycoords": ("axes fraction", "data"), "xytext": (-2, 3), "textcoords": "offset points"}
            axes.annotate(name, (1.0, height), ha="right", color="#aa3333", fontsize=9.5, **place)
        figure.savefig(folder / f"{chart.name}.png", dpi=130)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    (folder / f"{chart.name}.svg").write_text(svg)
    return svg


def _lines(axes: Axes, chart: Chart) -> None:
    for colour, series in zip(_COLOURS, chart.series, strict=False):
        marker = "o" if len(series.x) < 12 else None
        axes.plot(series.x, series.y, color=colour, label=series.name, linewidth=1.9, marker=marker, markersize=4.5)
    if "x" in chart.log:
        axes.set_xscale("log")
        xs = sorted({float(x) for series in chart.series for x in series.x})
        if len(xs) < 8:  # measured at these
            axes.set_xticks(xs, [f"{x:,.0f}" for x in xs])
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if "y" in chart.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3%}".rstrip("0%").rstrip(".") + " %"))
    else:
        axes.set_ylim(
            0, 1.15 * max([*(max(series.y) for series in chart.series), *(limit for limit, _ in chart.limits)])
        )
    if len(chart.series) > 1:  # beside the lines: inside, it would lie on some of them
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _bars(axes: Axes, chart: Chart) -> None:
    names = [str(name) for name in chart.series[0].x]
    width = 0.8 / len(chart.series)
    for number, (colour, series) in enumerate(zip(_COLOURS, chart.series, strict=False)):
        offset = (number - (len(chart.series) - 1) / 2) * width
        bars = axes.bar(
            [place + offset for place in range(len(names))], series.y, 0.92 * width, color=colour, label=series.name
        )
        if chart.values:
            axes.bar_label(
                bars, [format(value, chart.values) for value in series.y], padding=2, fontsize=8.5, color="#333333"
            )
    axes.set_xticks(range(len(names)), [_wrapped(name) for name in names])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    if chart.values.endswith("%"):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.margins(y=0.12)
    if len(chart.series) > 1:
        axes.legend(ncols=len(chart.series), loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _wrapped(name: str) -> str:
    """On two lines, when it is long."""
    words = name.split(" ")
    if len(name) < 16 or len(words) < 2:
        return name
    middle = min(range(1, len(words)), key=lambda cut: abs(len(" ".join(words[:cut])) - len(name) / 2))
    return " ".join(words[:middle]) + "\n" + " ".join(words[middle:])
