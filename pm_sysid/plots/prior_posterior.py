"""Parameters before and after the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import xarray as xr
from numpy.typing import ArrayLike

from pm_sysid.arguments import shown, words
from pm_sysid.idata import group, holds
from pm_sysid.plots.axes import MODEL, PRIOR, AxesArray, FloatArray, Panels, mark_truth, parameter_panels, shared_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FOCUS = 5  # times: a prior that much wider than the posterior does not set the range of a panel
_VISIBLE = 0.02  # of the height of the posterior: a lower prior would be hidden by the axis, and is not drawn
_CROWDED = 0.03  # of the draws within a bandwidth of the extreme one: it is a bound, not a tail
_MOST_PANELS = 40


def plot_prior_posterior(
    idata: xr.DataTree,
    *,
    var_names: str | Sequence[str] | None = None,
    truth: Mapping[str, ArrayLike] | None = None,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw the densities of each scalar parameter before and after the data.

    The title is the posterior mean and standard deviation. A panel whose prior is more than five times wider
    than its posterior (between the quartiles) shows the range of the posterior, and its title says so. There the prior is a
    line near the axis, and left out where it would lie on it.

    Parameters
    ----------
    idata : xarray.DataTree
        With the group ``posterior`` and, if the prior was sampled, ``prior``.
    var_names : str or sequence of str, optional
        Parameters; by default all variables of the posterior without a time dimension.
    truth : mapping of name to number or array, optional
        Known values, to mark.
    axes, figsize : array of matplotlib axes; (float, float); optional
        Where to draw, one per element of the parameters; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (panels,)

    Raises
    ------
    ValueError
        If there is no posterior or no such parameter, or more than 40 panels would be drawn.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> draws = xr.Dataset(
    ...     {"k": (("chain", "draw"), np.random.default_rng(0).normal(2.0, 0.1, (2, 500)))}
    ... )
    >>> (panel,) = plot_prior_posterior(
    ...     xr.DataTree.from_dict({"posterior": draws}), truth={"k": 2.0}
    ... )
    >>> panel.get_xlabel(), panel.get_title()
    ('k', '1.995 ± 0.098')
    """
    if not isinstance(truth, Mapping | None):
        raise TypeError(f"truth is {shown(truth)}; give a dict of numbers or arrays by name")
    if not holds(idata, "posterior"):
        have = ", ".join(idata.children) if isinstance(idata, xr.DataTree) else type(idata).__name__
        raise ValueError(f"idata must have the group 'posterior', but has {have or 'none'}")
    posterior = group(idata, "posterior")
    prior = idata["prior"].to_dataset() if "prior" in idata.children else xr.Dataset()
    parameters = list(_parameters(posterior, prior, var_names, truth or {}))
    if not 0 < len(parameters) <= _MOST_PANELS:
        raise ValueError(f"there are {len(parameters)} parameters to draw; choose 1 to {_MOST_PANELS} by var_names")
    used, _ = parameter_panels(axes, len(parameters), figsize, 1.8)
    for panel, parameter in zip(used, parameters, strict=True):
        _draw_densities(panel, *parameter)
    shared_legend(used, axes, "outside lower center", ncols=3 if axes is None else 1)
    return used


def _parameters(
    posterior: xr.Dataset, prior: xr.Dataset, var_names: str | Sequence[str] | None, truth: Mapping[str, ArrayLike]
) -> Iterator[tuple[str, FloatArray, FloatArray | None, float | None]]:
    """Label, posterior draws, prior draws and truth of every element of the variables."""
    names = None if var_names is None else words(var_names, "var_names")
    if names is None:
        names = [str(v) for v in posterior if not any(str(d).endswith("time") for d in posterior[v].dims)]
    if unknown := [name for name in [*names, *truth] if name not in posterior]:
        raise ValueError(f"the posterior has no parameter {unknown[0]!r}; it has {', '.join(map(str, posterior))}")
    for name in names:
        value = posterior[name]
        dims = [dim for dim in value.dims if dim not in ("chain", "draw", "sample")]
        shape = tuple(value.sizes[dim] for dim in dims)

        def pooled(group: xr.Dataset, name: str = name, dims: list[Any] = dims) -> FloatArray:
            array = group[name].transpose(*dims, ...)
            return np.asarray(array, dtype=float).reshape(*array.shape[: len(dims)], -1)

        after, before = pooled(posterior), pooled(prior) if name in prior else None
        known = np.broadcast_to(np.asarray(truth[name], dtype=float), shape) if name in truth else None
        for index in np.ndindex(shape):
            place = ", ".join(str(value[dim].to_numpy()[i]) for dim, i in zip(dims, index, strict=True))
            yield (
                f"{name}[{place}]" if place else name,
                after[index],
                None if before is None else before[index],
                None if known is None else float(known[index]),
            )


def _draw_densities(ax: Axes, label: str, posterior: FloatArray, prior: FloatArray | None, truth: float | None) -> None:
    width = np.subtract(*np.quantile(posterior, [0.75, 0.25]))
    ratio = np.subtract(*np.quantile(prior, [0.75, 0.25])) / width if prior is not None and width else 1.0
    reach = list(np.quantile(posterior, [0.001, 0.999]))
    if prior is not None and ratio <= _FOCUS:
        reach.extend(np.quantile(prior, [0.01, 0.99]))
    low, high = min(reach), max(reach)
    margin = 0.12 * (high - low) or abs(low) or 1.0
    low, high = (f(edge, truth) if truth is not None else edge for f, edge in ((min, low), (max, high)))
    x = np.linspace(low - margin, high + margin, 400)
    density = _density(posterior, x)
    before = None if prior is None else _density(prior, x)
    if before is not None and not before.max() < _VISIBLE * density.max():  # NaN for constants
        ax.plot(x, before, color=PRIOR, lw=1.2 if ratio <= _FOCUS else 0.7, label="prior")
    ax.plot(x, density, color=MODEL, lw=1.2, label="posterior")
    ax.fill_between(x, density, color=MODEL, alpha=0.25, linewidth=0)
    if truth is not None:
        mark_truth(ax, truth, "x")
    title = _mean_and_spread(posterior.mean(), posterior.std())
    if ratio > _FOCUS:
        title += f"\nprior {float(f'{ratio:.2g}'):g} times wider"
    ax.set_title(title, fontsize="small")
    ax.set(yticks=[], xlim=(x[0], x[-1]))
    ax.set_xlabel(label, loc="left")  # a power of ten stands on the right
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="x", nbins=3 if abs(x[-1]) < 1e3 * (x[-1] - x[0]) else 1, min_n_ticks=1)
    ax.ticklabel_format(axis="x", scilimits=(-2, 4), useMathText=True, useOffset=False)
    ax.spines[["left", "right", "top"]].set_visible(False)


def _density(draws: FloatArray, x: FloatArray) -> FloatArray:
    """Kernel density of at most 4000 draws, reflected where they crowd at a bound, so that it does not leak over it."""
    draws = draws[:: math.ceil(len(draws) / 4000)]
    low, high = draws.min(), draws.max()
    quartiles = np.subtract(*np.quantile(draws, [0.75, 0.25])) / 1.349
    bandwidth = 0.9 * (min(draws.std(), quartiles) or draws.std()) * len(draws) ** -0.2  # Silverman
    if not bandwidth:
        return np.full_like(x, np.nan)
    images, inside = draws, np.ones_like(x, dtype=bool)
    for edge in (low, high):
        if np.mean(np.abs(draws - edge) < bandwidth) > _CROWDED:
            images, inside = np.append(images, 2 * edge - draws), inside & ((x < edge) == (edge == high))
    density = scipy.stats.norm.pdf((x[:, None] - images) / bandwidth).sum(axis=1) / (len(draws) * bandwidth)
    return np.where(inside, density, 0.0)


def _mean_and_spread(mean: float, spread: float) -> str:
    """Both to two digits of the spread, with a power of ten if that is shorter."""
    if not spread > 0 or not math.isfinite(spread):
        return f"{mean:.4g}"
    size = math.floor(math.log10(max(abs(mean), spread)))
    power = size if not -2 <= size < 4 else 0
    digits = max(0, 1 - math.floor(math.log10(spread)) + power)
    text = f"{mean / 10**power:.{digits}f} ± {spread / 10**power:.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return rf"({text})$\times 10^{{{power}}}$" if power else text
