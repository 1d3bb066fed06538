"""A plot of one task: for each mode the share of right answers with its interval, and its cost and time beside it.

The colours follow the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import drawsvg

from tests.bench.modes.figures import ArmFigures
from tests.bench.modes.suites import TITLES

WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 760, 220, 130, 58, 40, 16
COST_X, TIME_X = WIDTH - 62, WIDTH - 8
SCALE_WIDTH = WIDTH - LEFT - RIGHT
TICKS = (0, 25, 50, 75, 100)
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.grid { stroke: #d0d7de; }
.m0 { stroke: #0969da; fill: #0969da; }
.m1 { stroke: #bc4c00; fill: #bc4c00; }
.number { text-anchor: end; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .grid { stroke: #3d444d; }
  .m0 { stroke: #58a6ff; fill: #58a6ff; }
  .m1 { stroke: #f0883e; fill: #f0883e; }
}
"""


def draw(rows: Mapping[str, Sequence[ArmFigures]]) -> str:
    """Return an SVG of the arms of each model; costs and times are ratios to the first arm's."""
    arms = [row.arm for row in next(iter(rows.values()))]
    drawing = drawsvg.Drawing(WIDTH, TOP + len(arms) * ROW + GAP)
    drawing.append_css(STYLE)
    _draw_scale(drawing, len(arms))
    for position, arm in enumerate(arms):
        drawing.append(drawsvg.Text(TITLES[arm], None, 8, _middle(position) + 4))
    for number, (model, found) in enumerate(rows.items()):
        _draw_model(drawing, number, model, found)
    return str(drawing.as_svg())


def _draw_scale(drawing: drawsvg.Drawing, arms: int) -> None:
    for tick in TICKS:
        x = _x(tick / 100)
        drawing.append(drawsvg.Line(x, TOP - 6, x, TOP + arms * ROW, class_="grid"))
        drawing.append(drawsvg.Text(f"{tick} %", None, x, TOP - 12, text_anchor="middle"))
    for title, x in (("cost", COST_X), ("time", TIME_X)):
        drawing.append(drawsvg.Text(title, None, x, TOP - 12, class_="number"))


def _draw_model(drawing: drawsvg.Drawing, number: int, model: str, found: Sequence[ArmFigures]) -> None:
    look = f"m{number}"
    legend_x = LEFT + 210 * number
    drawing.append(drawsvg.Circle(legend_x, 16, 5, class_=look))
    drawing.append(drawsvg.Text(f"{model}, {found[0].cases} samples", None, legend_x + 12, 20))
    for position, row in enumerate(found):
        y = _middle(position) + (number - 0.5) * GAP
        if row.interval is not None:
            drawing.append(drawsvg.Line(_x(row.interval.low), y, _x(row.interval.high), y, class_=look, stroke_width=2))
        drawing.append(drawsvg.Circle(_x(row.right), y, 5, class_=look))
        ratios = {COST_X: row.cost_usd / found[0].cost_usd, TIME_X: row.time_ratio}
        for x, ratio in ratios.items():
            drawing.append(drawsvg.Text(f"{ratio:.1f}x", None, x, y + 4, class_="number"))


def _middle(position: int) -> float:
    return TOP + (position + 0.5) * ROW


def _x(share: float) -> float:
    return LEFT + share * SCALE_WIDTH
