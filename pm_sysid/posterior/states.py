"""The states given the whole record: their moments, and paths drawn from their joint posterior."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.arguments import flag, seed, whole
from pm_sysid.idata import value_of
from pm_sysid.likelihood.filter_view import FilterView, filter_view
from pm_sysid.posterior.particle_paths import DRAWS, Judged, PathSampler
from pm_sysid.posterior.passes import Arrays, Passes
from pm_sysid.progress import progress_bar
from pm_sysid.recurrence.threads import in_threads

#: Where the linearisation about processes makes bands wrong, and what to do instead.
REMEDY = "Paths of sample_states are drawn by particles there: take these."


def smooth(
    idata: Any,
    *,
    model: pm.Model | None = None,
    name: str | None = None,
    draws: int | None = None,
    progressbar: bool = True,
) -> xr.Dataset:
    """Means and standard deviations of states, derivatives and outputs given the whole record, for each posterior draw.

    For the parameters of each draw they carry the measurement noise and the integration error; over draws, the means
    spread by what is uncertain about the parameters. Use :func:`sample_states` for paths that carry all three.

    Parameters
    ----------
    idata : xarray.DataTree, xarray.Dataset or mapping
        Posterior draws (a tree with the group ``posterior``, or a Dataset with ``chain`` and ``draw``), or one point: a
        mapping of the model's free variables to numbers, which makes one chain of one draw.
    model : pm.Model, optional
        Default: the model on the context stack.
    name : str, optional
        Name of the :class:`ODEFilter`; needed if the model has several.
    draws : int, optional
        Use this many draws of each chain, evenly spaced. Default: all.
    progressbar : bool, default True
        Show how many draws are done. They run on as many threads as :func:`set_threads` says, but for paths of particles (see
        :func:`sample_states`), which have no bar.

    Returns
    -------
    xarray.Dataset
        ``states`` and ``derivatives`` (of the states by time) with dims (chain, draw, time, state), ``outputs`` (without
        measurement noise) with dims (chain, draw, time, output), each with its standard deviation ``states_std``, ...;
        of a filter with processes also ``inputs`` (chain, draw, time, input), ``parameters`` (chain, draw, time, parameter)
        and ``coloured_noise`` (chain, draw, time, coloured), which is no part of the outputs; in the units of the model.
        ``state`` and ``output`` are labels of entries, such as ``q[3]``; a vector ``q`` also stands under its own name with the
        dims (chain, draw, time, q_dim_0), and its standard deviation as ``q_std``: the same numbers in another shape, and
        those of the output where a state has its name.
        ``units`` (output) are those of the record, if it has them. ``time`` is in seconds; of several records the times follow
        each other, and the coordinate ``record`` counts them. ``measured`` (time, output) is the record. Where an input jumps,
        derivatives are those after the jump.

    Raises
    ------
    ValueError
        If there is no such filter, or several and no ``name``; if draws are missing, or fewer than asked for.

    Warns
    -----
    UserWarning
        If the ODE cannot be solved with the parameters of some draws, which are NaN then; and if the filter linearises about
        processes (``latent``, ``varying``, ``coloured``), and that makes the moments wrong, or whether it does is not known.

    Notes
    -----
    Outputs are linearised at the smoothed mean. Where the filter linearises about processes, particles at a few draws say
    whether the bands are right, as in :func:`sample_states`; the attribute ``processes`` says what was found.

    Source: the Rauch-Tung-Striebel smoother in square-root form (Rauch, Tung and Striebel 1965; Park and Kailath 1995), for
    ODEs Tronarp, Kersting, Sarkka and Hennig (2019), Kraemer and Hennig (2020); the initial state after de Jong (1991).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> record = sid.TimeSeries(np.arange(6) / 2, None, [1.0, 0.6, np.nan, 0.2, 0.1, 0.1])
    >>> with pm.Model():
    ...     rate = pm.LogNormal("rate")
    ...     _ = sid.ODEFilter(
    ...         "y", decay, record, {"rate": rate}, noise=0.05, x0=1.0, substeps=4
    ...     )
    ...     smoothed = sid.smooth({"rate": 1.0})
    >>> smoothed["states"].dims
    ('chain', 'draw', 'time', 'state')
    >>> bool(abs(smoothed["states"][0, 0, 2, 0] - np.exp(-1.0)) < 0.01)
    True
    """
    flag(progressbar, "progressbar")
    view = filter_view(name, model)
    passes = Passes(view)
    picked = _picked(passes, idata, draws)
    judged, _ = _judged(view, passes, idata)
    if judged and (judged.particles or judged.problem):
        remedy = "" if judged.problem else f". {REMEDY}"
        warnings.warn(f"{view.name!r} linearises about its processes: {judged.said}{remedy}", stacklevel=2)
    with np.errstate(all="ignore"), progress_bar("smooth", progressbar, len(picked.points)) as bar:
        results = in_threads(passes.moments, picked.points, partial(bar, advance=1))
    return _stacked(passes, picked, results, judged)


def sample_states(
    idata: Any,
    *,
    model: pm.Model | None = None,
    name: str | None = None,
    draws: int | None = None,
    random_seed: int | Sequence[int] | np.random.Generator | None = None,
    progressbar: bool = True,
) -> xr.Dataset:
    """Draw one path of states, derivatives and outputs from their joint posterior for each posterior draw.

    Over draws, the paths carry what is uncertain about the parameters, the integration and the measurements.

    Parameters
    ----------
    idata, model, name, draws, progressbar
        As for :func:`smooth`.
    random_seed : int, sequence of int or numpy.random.Generator, optional
        Seed. The path of a posterior draw depends on the seed and the draw's place in ``idata`` alone, not on which other
        draws are used.

    Returns
    -------
    xarray.Dataset
        ``states``, ``derivatives`` and ``outputs`` (the observation of the drawn states, without measurement noise), and
        ``inputs``, ``parameters`` and ``coloured_noise`` where these are processes, with the dims and coordinates of
        :func:`smooth`, and vectors under their own names as there.

    Raises
    ------
    ValueError
        As for :func:`smooth`.

    Warns
    -----
    UserWarning
        If the ODE cannot be solved with the parameters of some draws, which are NaN then; and if the filter linearises about
        processes, and whether that makes the paths wrong could not be measured.

    Notes
    -----
    Backward sampling through the factors of the square-root Rauch-Tung-Striebel recursion; sources as for :func:`smooth`.

    A filter with processes (``latent``, ``varying``, ``coloured``) linearises about their mean, unless system and sensors are
    linear and Gaussian. Then particle filters at four draws first say whether that matters to the states (of long records, at
    the first samples). Where it does by more than chance, each path is that of one particle, with its ancestors, out of up to
    256 that follow the record at its draw (Kitagawa 1996, Monte Carlo filter and smoother for non-Gaussian nonlinear state
    space models). A path then takes about a hundred times longer, and ``draws=`` says how many are enough. The attribute
    ``processes`` says what was found. Nothing is compared where the system is stiff, or its uncertain initial state is tied
    by relations.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> fall = sid.System(
    ...     lambda t, x, u, p: (x.v, -p.g),
    ...     states=("h", "v"),
    ...     params=("g",),
    ...     observe=lambda t, x, dx, u, p: x.h,
    ... )
    >>> record = sid.TimeSeries([0.0, 0.1, 0.2, 0.3], None, [10.0, 9.95, np.nan, 9.56])
    >>> with pm.Model():
    ...     _ = sid.ODEFilter(
    ...         "y",
    ...         fall,
    ...         record,
    ...         {"g": pm.Normal("g", 10, 1)},
    ...         noise=0.01,
    ...         x0={"h": 10.0, "v": 0.0},
    ...         substeps=1,
    ...     )
    ...     paths = sid.sample_states({"g": 9.81}, random_seed=1)
    >>> (
    ...     paths["states"].sizes["state"],
    ...     bool(np.all(paths["states"].sel(state="h") == paths["outputs"].sel(output="y"))),
    ... )
    (2, True)
    """
    seed(random_seed)
    flag(progressbar, "progressbar")
    view = filter_view(name, model)
    passes = Passes(view)
    given: Any = random_seed.integers(2**32, size=4) if isinstance(random_seed, np.random.Generator) else random_seed
    entropy = np.random.SeedSequence(given).entropy
    picked = _picked(passes, idata, draws)
    judged, sampler = _judged(view, passes, idata)
    rngs = [np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=place)) for place in picked.places]
    with np.errstate(all="ignore"):
        if judged and sampler and judged.particles:
            drawn = sampler.at(picked.points, judged, rngs)
            results = [passes.followed(p, z) for p, z in drawn]
        else:
            pairs = list(zip(picked.points, rngs, strict=True))
            with progress_bar("sample_states", progressbar, len(pairs)) as bar:
                results = in_threads(lambda pair: passes.path(*pair), pairs, partial(bar, advance=1))
    if judged and judged.problem:
        warnings.warn(f"{view.name!r} linearises about its processes: {judged.said}", stacklevel=2)
    return _stacked(passes, picked, results, judged)


def _judged(view: FilterView, passes: Passes, idata: Any) -> tuple[Judged | None, PathSampler | None]:
    """What linearising about processes does to paths, at a few of all draws; None where nothing is linearised."""
    if not view.problem.linearises_processes:
        return None, None
    sampler, every = PathSampler(view, passes), _picked(passes, idata, None)
    few = np.unique(np.linspace(0, len(every.points) - 1, DRAWS).round().astype(int))
    return sampler.judged([every.points[i] for i in few]), sampler


class Picked(NamedTuple):
    """Draws that are used: values of the filter's free variables, the number of chain and draw, and the labels of these."""

    points: list[list[np.ndarray]]
    places: list[tuple[int, int]]
    coords: dict[str, Any]


def _picked(passes: Passes, idata: Any, draws: int | None) -> Picked:
    """Some draws of each chain of a posterior, or all."""
    names = [str(v.name) for v in passes.needed]
    posterior = _posterior(idata, names)
    total = posterior.sizes["draw"]
    if draws is not None and not (whole(draws) and 1 <= draws <= total):
        raise ValueError(f"draws is {draws!r}, but idata has {total} draws in each chain; give an integer from 1 to {total}.")
    picked = np.arange(total) if draws is None else np.linspace(0, total - 1, draws).round().astype(int)
    columns = [(v, posterior[str(v.name)].transpose("chain", "draw", ...).to_numpy()) for v in passes.needed]
    places = [(c, int(d)) for c in range(posterior.sizes["chain"]) for d in picked]
    points = [[value_of(str(v.name), values[place], v) for v, values in columns] for place in places]
    return Picked(points, places, {"chain": posterior["chain"], "draw": posterior["draw"][picked]})


def _stacked(passes: Passes, picked: Picked, rows: list[Arrays], judged: Judged | None) -> xr.Dataset:
    """Results of draws with labels; NaN where the ODE cannot be solved."""
    failed = [k for k, results in enumerate(rows) if not all(np.isfinite(r).all() for r in results.values())]
    for k in failed:
        rows[k] = {name: np.full_like(r, np.nan) for name, r in rows[k].items()}
    if failed:
        warnings.warn(
            f"the ODE could not be solved with the parameters of {len(failed)} of {len(rows)} draws; their states are NaN. "
            "More substeps may help.",
            stacklevel=3,
        )
    shape = picked.coords["chain"].size, picked.coords["draw"].size
    stacked = {k: np.stack([r[k] for r in rows]).reshape(*shape, *rows[0][k].shape) for k in rows[0]}
    found = passes.dataset(stacked, picked.coords)
    if judged:
        found.attrs["processes"] = judged.said
    return found


def _posterior(idata: Any, names: Sequence[str]) -> xr.Dataset:
    """Draws of the named variables, with dims ``chain`` and ``draw``."""
    if isinstance(idata, xr.DataTree):
        if "posterior" not in idata.children:
            raise ValueError(f"idata has no group 'posterior', but {list(idata.children)}; give what pm.sample returned.")
        idata = idata["posterior"].to_dataset()
    elif isinstance(idata, Mapping) and not isinstance(idata, xr.Dataset):
        point = {k: np.asarray(v)[None, None] for k, v in idata.items()}
        idata = xr.Dataset({k: (("chain", "draw", *(f"{k}_{i}" for i in range(v.ndim - 2))), v) for k, v in point.items()})
    if not isinstance(idata, xr.Dataset):
        raise ValueError(f"idata is {type(idata).__name__}; give what pm.sample returned, or a dict of one value a variable.")
    if missing := [n for n in names if n not in idata]:
        raise ValueError(f"idata has no values of {missing}, which the filter depends on; it has {sorted(map(str, idata))}.")
    if absent := {"chain", "draw"} - set(idata.dims):
        raise ValueError(f"idata has no dimension {' and '.join(sorted(absent))}; give what pm.sample returned.")
    return idata
