"""The arithmetic of `octavo bench`."""

from octavo.cli.bench_figures import Line, quantile, summary, table


def test_quantiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert quantile(values, 0.5) == 51.0
    assert quantile(values, 0.99) == 100.0
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([], 0.5) is None


def test_a_summary_and_its_row() -> None:
    line = summary("four", [0.1, 0.2, 0.3, 0.4], [0.01, 0.02], (400, 200), 2.0)
    assert (line.requests, line.first_token, line.per_token) == (4, 0.3, 0.02)
    assert (line.prompt_rate, line.output_rate) == (200.0, 100.0)
    rows = list(table([line, Line("none", 1, None, None, None, None, 1.0, 0.0, 1.0)]))
    assert "300.0" in rows[2]
    assert " - " in rows[3]
