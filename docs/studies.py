"""One figure of each case study, drawn from its saved results when the site is built."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

RESULTS = Path(__file__).parent.parent / "examples" / "results"
SIZE = 5.6, 3.2
BLUE, ORANGE, GREY = "#1f77b4", "#d95f02", "0.6"


def saved(study: str) -> Any:
    """Numbers of a study."""
    return json.loads((RESULTS / f"{study}.json").read_text())


def silverbox(ax: Any) -> None:
    """Error of free runs of the posterior, by structure."""
    found = saved("silverbox")["structures"]
    middle = np.array([found[name]["rmse"][1] for name in found])
    ax.barh([name if name == "Duffing" else f"+ {name}" for name in found], middle, color=BLUE)
    for y, value in enumerate(middle):
        ax.text(value + 0.05, y, f"{value:.2g}", va="center")
    ax.set(xlabel="RMSE on the arrow head (mV)", xlim=(0, 6))
    ax.invert_yaxis()


def bouc_wen(ax: Any) -> None:
    """Means and intervals of the parameters, as multiples of the true values, for three draws of the noise."""
    runs = saved("bouc_wen")["this"]
    names = list(runs["1"]["parameters"])
    for i, run in enumerate(runs.values()):
        y = np.arange(len(names)) + 0.22 * (i - 1)
        found = [run["parameters"][n] for n in names]
        truth = np.array([p["truth"] for p in found])
        ends = np.sort(np.array([p["interval"] for p in found]) / truth[:, None], axis=1)
        ax.hlines(y, *ends.T, color=BLUE, lw=1.5)
        ax.plot(np.array([p["mean"] for p in found]) / truth, y, "o", ms=3, color=BLUE)
    ax.axvline(1.0, color=ORANGE, lw=1)
    ax.set_yticks(range(len(names)), [n.replace("_", " ") for n in names])
    ax.set(xlabel="mean and 95 % interval, over the true value")
    ax.invert_yaxis()


def emps(ax: Any) -> None:
    """Open-loop error of each choice on the two records."""
    found = saved("emps")["choices"]
    train, test = np.array([[v[0], v[1]] for v in found.values()]).T
    y = np.arange(len(found))
    ax.barh(y - 0.2, train, 0.38, color=GREY, label="record of the fit")
    ax.barh(y + 0.2, test, 0.38, color=BLUE, label="record of validation")
    ax.set_yticks(y, list(found), fontsize="x-small")
    ax.set(xlabel="open-loop error (mm)", xlim=(0, 15))
    ax.invert_yaxis()
    ax.legend(fontsize="x-small", loc="lower right")


def friction(ax: Any) -> None:
    """Error of prediction of the three laws, by the law that is true."""
    found = saved("friction_models")
    laws = ["viscous", "coulomb", "tanh"]
    for i, law in enumerate(laws):
        values = [1e3 * found[true]["table"][law]["RMSE"] for true in laws]
        ax.bar(np.arange(3) + 0.26 * (i - 1), values, 0.24, label=f"{law} model", color=(GREY, BLUE, ORANGE)[i])
    ax.set_xticks(range(3), [f"{true} is true" for true in laws])
    ax.axhline(0.3, color="k", lw=0.8, ls="--", label="noise")
    ax.set(ylabel="RMSE of prediction (mm)")
    ax.legend(fontsize="x-small")


def piecewise(ax: Any) -> None:
    """Probability of each number of slopes by nested sampling without a likelihood, by record."""
    titles = {
        "visited": "spring with three slopes (simulated)",
        "damping": "damper with three slopes (simulated)",
        "absorber": "shock absorber (simulated)",
        "mr": "magnetorheological damper (measured)",
        "friction": "friction damper (measured)",
    }
    found = saved("piecewise_linear")
    left = np.zeros(len(titles))
    for i, label in enumerate(("one slope", "two", "three", "four")):
        width = np.array([found[name]["probability"][i] for name in titles])
        ax.barh(list(titles.values()), width, left=left, label=label, color=("0.85", GREY, BLUE, ORANGE)[i])
        left += width
    ax.set(xlabel="probability", xlim=(0, 1))
    ax.invert_yaxis()
    ax.legend(fontsize="x-small", ncols=4, loc="lower center", bbox_to_anchor=(0.1, 1.0))


STUDIES: dict[str, Callable[[Any], None]] = {
    "silverbox": silverbox, "bouc_wen": bouc_wen, "emps": emps, "friction": friction, "piecewise": piecewise,
}  # fmt: skip


def draw_studies(folder: Path) -> None:
    """Draw the figure of each study."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in STUDIES.items():
        figure, ax = pyplot.subplots(figsize=SIZE, layout="constrained")
        draw(ax)
        ax.spines[["top", "right"]].set_visible(False)
        figure.savefig(folder / f"study_{name}.png", dpi=110)
        pyplot.close(figure)


if __name__ == "__main__":
    draw_studies(Path(__file__).parent / "gallery")
