"""The picture of a run: one panel per scenario, a column of panels per message size."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import units
from bench.files import write_whole
from bench.results import Results, present
from bench.scenarios import Scenario

_COLORS = {"penstock": "#0b6e99", "peer": "#b9c0c7", "limit": "#e3cf9b"}
_LEGEND = {"penstock": "Penstock", "peer": "peers", "limit": "limits of the machine"}
_AXES = {
    "rate": ("messages per second", units.rate),
    "p50_us": ("p50 in µs, shorter is better", lambda value: f"{units.digits(value)} µs"),
    "p999_us": ("p99.9 in µs, shorter is better", lambda value: f"{units.digits(value)} µs"),
    "ms": ("ms, shorter is better", lambda value: f"{units.digits(value)} ms"),
    "gb_per_s": ("GB/s", lambda value: f"{units.digits(value)} GB/s"),
}


def _panel(axes: Any, results: Results, scenario: Scenario, size: int) -> None:
    from matplotlib.ticker import NullFormatter

    rows = [row for row in results.of(scenario.name, size) if row.headline()][::-1]
    values = [row.headline() or 0.0 for row in rows]
    title, show = _AXES[scenario.headline]
    axes.barh(range(len(rows)), values, color=[_COLORS[row.group] for row in rows], height=0.72)
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    axes.set_xscale("log")
    low, high = min(values), max(values)
    # Bars on a log scale have no zero: start a decade below the smallest, and leave room for the figures.
    axes.set_xlim(low / 10, high * (high * 10 / low) ** 0.25)
    for position, value in enumerate(values):
        axes.text(value * 1.08, position, show(value), va="center", fontsize=8)
    axes.set_ylim(-0.6, max(len(rows), 3) - 0.4)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"{scenario.name}, {units.size(size)}", fontsize=10, loc="left", fontweight="bold")
    axes.set_xlabel(title, fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def draw(path: Path, results: Results, scenarios: Sequence[str], caption: str) -> bool:
    """Write the plot as PNG; false if there is nothing to show."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    panels = [
        pair for pair in present(scenarios, results) if any(row.headline() for row in results.of(pair[0].name, pair[1]))
    ]
    if not panels:
        return False
    sizes = sorted({size for _, size in panels})
    names = list(dict.fromkeys(scenario.name for scenario, _ in panels))
    # Two sizes make two columns; one size alone fills two columns with scenarios.
    wide = len(sizes) if len(sizes) > 1 else min(2, len(names))
    if len(sizes) > 1:
        places = {(scenario.name, size): (names.index(scenario.name), sizes.index(size)) for scenario, size in panels}
        high = len(names)
    else:
        places = {(scenario.name, size): divmod(index, wide) for index, (scenario, size) in enumerate(panels)}
        high = -(-len(panels) // wide)
    most = {
        line: max(len(results.of(name, size)) for (name, size), (at, _) in places.items() if at == line)
        for line in range(high)
    }
    heights = [0.7 + 0.22 * max(3, most[line]) for line in range(high)]
    figure, grid = plt.subplots(
        high,
        wide,
        figsize=(6.6 * wide, sum(heights) + 1.2),
        squeeze=False,
        height_ratios=heights,
        layout=ConstrainedLayoutEngine(w_pad=0.1),
    )
    for axes in grid.flat:
        axes.set_visible(False)
    for scenario, size in panels:
        line, column = places[scenario.name, size]
        grid[line][column].set_visible(True)
        _panel(grid[line][column], results, scenario, size)
    figure.legend(
        handles=[Patch(color=_COLORS[group], label=_LEGEND[group]) for group in _COLORS],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    figure.suptitle(caption, fontsize=8, color="#555555")
    image = io.BytesIO()
    figure.savefig(image, dpi=130, format="png")
    plt.close(figure)
    write_whole(path, image.getvalue())
    return True
