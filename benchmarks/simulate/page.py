"""Puts findings on one page that needs nothing else: no script, no font, no picture from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.simulate.findings import Finding, Table

_CSS = """
:root { color-scheme: light; } body { margin: 0 auto; padding: 2.5rem 1.5rem 5rem; max-width: 62rem; background: #fff;
color: #222; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; } h1 {
font-size: 1.9rem; margin: 0 0 .3rem; letter-spacing: -.01em; } h2 { font-size: 1.35rem; margin: 3.2rem 0 .4rem;
padding-top: 1rem; border-top: 1px solid #ddd; } h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; } p { max-width: 46rem;
margin: .5rem 0; } .lead { color: #555; } nav { margin: 1.2rem 0 0; display: flex; flex-wrap: wrap; gap: .4rem .5rem;
} nav a { text-decoration: none; color: #0072b2; background: #eef5fa; border-radius: 1rem; padding: .15rem .8rem;
font-size: .92rem; } nav a:hover { background: #dcebf5; } .scroll { overflow-x: auto; } table { border-collapse:
collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .5rem 0; } th, td { padding: .28rem .8rem;
text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; } th { font-weight: 600; color: #555;
border-bottom: 2px solid #ccc; vertical-align: bottom; white-space: normal; } th:first-child, td:first-child {
text-align: left; padding-left: 0; } tr:hover td { background: #f8fafb; } figure { margin: 1.4rem 0; } figure svg {
width: 100%; height: auto; max-width: 54rem; }
"""


def render(findings: Sequence[Finding], pictures: Mapping[str, str], lead: str) -> str:
    """The page.

    Args:
        pictures: SVG by the chart's name.
        lead: one paragraph of what was simulated.
    """
    links = "".join(f'<a href="#{finding.name}">{escape(finding.title)}</a>' for finding in findings)
    parts = [_section(finding, pictures) for finding in findings]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Octavo, simulated</title><style>{_CSS}</style></head><body>\n"
        f'<h1>Octavo, simulated</h1>\n<p class="lead">{escape(lead)}</p>\n<nav>{links}</nav>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _section(finding: Finding, pictures: Mapping[str, str]) -> str:
    figures = "".join(f"<figure>{_unique(pictures[chart.name], chart.name)}</figure>\n" for chart in finding.charts)
    tables = "\n".join(_table(table) for table in finding.tables)
    words = escape(" ".join(finding.words.split()))
    return f'<h2 id="{finding.name}">{escape(finding.title)}</h2>\n<p>{words}</p>\n{figures}{tables}'


def _unique(svg: str, name: str) -> str:
    """Ids of one picture must not be those of another on the same page."""
    return svg.replace('id="', f'id="{name}-').replace('"#', f'"#{name}-').replace("url(#", f"url(#{name}-")


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    return f'{title}<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
