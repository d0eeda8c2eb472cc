"""The states given the whole record: their moments, and paths drawn from their joint posterior."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph.basic import Variable

from pm_sysid.arguments import seed
from pm_sysid.likelihood.filter_view import FilterView, filter_view
from pm_sysid.progress import announced
from pm_sysid.records.units import label_units
from pm_sysid.recurrence.functions import compiled
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.solve.filter_graph import Problem, RecordData
from pm_sysid.steps.derived import completed
from pm_sysid.steps.rts_smoother import Path, Smoother
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import simplify, substitute, untraced
from pm_sysid.symbolic.system import System

type Arrays = dict[str, np.ndarray]


def smooth(idata: Any, *, model: pm.Model | None = None, name: str | None = None, draws: int | None = None) -> xr.Dataset:
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
        If the ODE cannot be solved with the parameters of some draws, which are NaN then.

    Notes
    -----
    Outputs are linearised at the smoothed mean. Source: the Rauch-Tung-Striebel smoother in square-root form (Rauch, Tung
    and Striebel 1965; Park and Kailath 1995), for ODEs Tronarp, Kersting, Sarkka and Hennig (2019), Kraemer and Hennig
    (2020); the initial state after de Jong (1991).

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
    passes = Passes(filter_view(name, model))
    return _over_draws(passes, idata, draws, lambda point, place: passes.moments(point))


def sample_states(
    idata: Any,
    *,
    model: pm.Model | None = None,
    name: str | None = None,
    draws: int | None = None,
    random_seed: int | Sequence[int] | np.random.Generator | None = None,
) -> xr.Dataset:
    """Draw one path of states, derivatives and outputs from their joint posterior for each posterior draw.

    Over draws, the paths carry what is uncertain about the parameters, the integration and the measurements.

    Parameters
    ----------
    idata, model, name, draws
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
        As for :func:`smooth`.

    Notes
    -----
    Backward sampling through the factors of the square-root Rauch-Tung-Striebel recursion; sources as for :func:`smooth`.

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
    passes = Passes(filter_view(name, model))
    given: Any = random_seed.integers(2**32, size=4) if isinstance(random_seed, np.random.Generator) else random_seed
    entropy = np.random.SeedSequence(given).entropy

    def path(point: list[np.ndarray], place: tuple[int, int]) -> Arrays:
        return passes.path(point, np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=place)))

    return _over_draws(passes, idata, draws, path)


class Grid(NamedTuple):
    """A record with a sample at the end of every substep, K rows: measured, and jumping, where it was before."""

    data: RecordData
    y: np.ndarray
    path: Path


def every_substep(problem: Problem, data: RecordData, y: np.ndarray) -> Grid:
    """Put a sample at the end of every substep; ``data`` and ``y`` (T, n_y) are arrays."""
    n_u, rows = len(problem.system.u), np.maximum(data.counts, 1)
    ends, stepped = np.cumsum(rows) - 1, np.repeat(data.counts > 0, rows)
    samples = np.zeros((len(stepped), data.samples.shape[1]))
    samples[stepped, : 1 + n_u] = data.substeps[:, : 1 + n_u]
    if problem.input_levels[1] and problem.form.smoothness == 0:
        samples[:, 1 + n_u :] = samples[:, 1 : 1 + n_u]  # the input before is the input after
    samples[ends] = data.samples
    measured = np.full((len(stepped), y.shape[1]), np.nan)
    measured[ends] = y
    counts = np.where(stepped, 1, np.repeat(data.counts, rows))
    ratio = np.ones(len(stepped))
    if not problem.form.uniform:
        ratio[stepped] = data.substeps[:, -1]
    kept = np.isin(np.arange(len(stepped)), ends)
    path = Path(kept, np.append(counts[1:] < 0, True), ratio)
    return Grid(data._replace(counts=counts, samples=samples), measured, path)


@lru_cache(maxsize=64)
@untraced()
def observation(system: System) -> Recurrence:
    """Outputs at ``t, u, x, dx`` without noise, then their derivatives by x and dx, output by output; nothing is carried."""
    nothing, system = Phase.build([], system.p, [], []), system.driven
    clean: dict[Variable, Any] = {x: 0.0 for one in system.latents if one.role == "noise" for x in one.x}
    outputs = simplify(substitute(system.g, clean))
    slopes = [d for row in jacobian(outputs, [*system.x, *system.dx]) for d in row]
    sample = Phase.build([], system.p, [system.t, *system.u, *system.x, *system.dx], [*outputs, *slopes])
    return Recurrence(nothing, nothing, sample, n_carry=0, n_params=len(system.p), name="observation")


class Passes:
    """The filter of a model, forward and backward at given parameters."""

    def __init__(self, view: FilterView) -> None:
        self.name, self.system, self.units = view.name, view.system, view.units
        self.data, self.y = view.arrays(), view.measured()
        self.grid = every_substep(view.problem, self.data, self.y)
        self.smoother = Smoother(self.system, view.problem.form)
        #: Variables a point gives values for, in order.
        self.needed = view.free
        fine = RecordData(*map(pytensor.shared, self.grid.data))
        table, _ = view.problem.run(pytensor.shared(self.grid.y), view.unknowns, fine, "states")
        self.forward = announced("filter", lambda: compiled(self.needed, [table, view.unknowns.params]))
        params, samples = view.unknowns.params.type(), pt.dmatrix()
        runs = np.minimum(self.data.counts, 0)
        none = np.empty((len(self.data.starts), 0)), runs, np.empty((0, 0))
        self.observe = compiled([params, samples], observation(self.system)(completed(self.system, params), *none, samples)[0])

    def moments(self, point: list[np.ndarray]) -> Arrays:
        """Means and standard deviations at the samples."""
        table, params = self.forward(*point)
        mean, root = self.smoother.run(self.grid.path, self.smoother.unpack(table))
        scale = self.smoother.sizes(self.data.scale)[:, None]
        mean, root = mean * scale, root * scale
        place, rate, n_y = self.smoother.place, self.smoother.rate, len(self.system.g)
        observed = self._observed(params, mean[..., 0])
        slopes = observed[:, n_y:].reshape(len(observed), n_y, -1)
        H = np.zeros((len(observed), n_y, mean.shape[1]))
        for s, component in enumerate([*place, *self.smoother.processes, *rate]):
            H[:, :, component] += slopes[:, :, s]
        width = root.shape[2]  # of a block
        parts = [H[:, :, i : i + width] @ root[:, i : i + width] for i in range(0, len(self.smoother.level), width)]
        std = np.sqrt(np.sum(root**2, axis=2) + np.sum(mean[..., 1:] ** 2, axis=2))
        driven = self._processes(params, mean[:, self.smoother.processes])
        return {
            "states": mean[:, place, 0],
            "states_std": std[:, place],
            "derivatives": mean[:, rate, 0],
            "derivatives_std": std[:, rate],
            "outputs": observed[:, :n_y],
            "outputs_std": np.sqrt(sum(np.sum(p**2, axis=2) for p in (*parts, H @ mean[..., 1:]))),
            **{name: value[..., 0] for name, value in driven.items()},
            **{f"{name}_std": np.sqrt(np.sum(value[..., 1:] ** 2, axis=2)) for name, value in driven.items()},
        }

    def starts(self, point: list[np.ndarray], first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Smoothed states (R, n_x) at the first samples of the records, and roots (R, n_x, free) of their covariances."""
        table, _ = self.forward(*point)
        mean, _ = self.smoother.run(self.grid.path, self.smoother.unpack(table))
        place = self.smoother.place
        at = mean[first][:, place] * self.smoother.sizes(self.data.scale)[place][:, None]
        return at[..., 0], at[..., 1:]

    def smoothed(self, point: list[np.ndarray]) -> np.ndarray:
        """Smoothed states and processes (T, n) at the samples: those of the processes that are noise come last."""
        table, _ = self.forward(*point)
        mean, _ = self.smoother.run(self.grid.path, self.smoother.unpack(table))
        ends = np.cumsum([one.kind.size for one in self.system.latents])
        each = np.split(np.asarray(self.smoother.processes), ends[:-1]) if len(ends) else []
        roles = [one.role == "noise" for one in self.system.latents]
        ordered = [i for last in (False, True) for r, e in zip(roles, each, strict=True) if r is last for i in e]
        places = [*self.smoother.place, *ordered]
        found: np.ndarray = mean[:, places, 0] * self.smoother.sizes(self.data.scale)[places]
        return found

    def path(self, point: list[np.ndarray], rng: np.random.Generator) -> Arrays:
        """Draw a path at the samples."""
        table, params = self.forward(*point)
        last = self.grid.path.last
        start = rng.standard_normal((last.sum(), 0 if self.smoother.n_new else self.smoother.n_free))
        normal = rng.standard_normal((len(last), len(self.smoother.level) + self.smoother.n_new))
        mean, deviation = self.smoother.run(self.grid.path, self.smoother.unpack(table), normal)
        x = mean[..., 0] + np.einsum("tif,tf->ti", mean[..., 1:], start[self.record]) + deviation[..., 0]
        x = x * self.smoother.sizes(self.data.scale)
        observed = self._observed(params, x)
        driven = self._processes(params, x[:, self.smoother.processes, None])
        return {
            "states": x[:, self.smoother.place],
            "derivatives": x[:, self.smoother.rate],
            "outputs": observed[:, : len(self.system.g)],
            **{name: value[..., 0] for name, value in driven.items()},
        }

    def _processes(self, params: np.ndarray, x: np.ndarray) -> Arrays:
        """Inputs, parameters and noise that are processes (T, n, columns), from the states of these; first column: the mean."""
        found: dict[str, list[np.ndarray]] = {}
        at, entry = 0, len(self.system.base.params)
        rows = params if params.ndim == 2 else params[None]
        which = self.record if params.ndim == 2 else np.zeros(len(x), dtype=int)  # row of each sample
        for one in self.system.latents:
            weights = np.array(
                [one.kind.value([float(v) for v in row[entry : entry + len(one.p)]]) for row in rows], dtype=float
            )
            value = np.einsum("tic,ti->tc", x[:, at : at + one.kind.size], weights[which])
            at, entry = at + one.kind.size, entry + len(one.p)
            if one.role == "parameter":
                value[:, 0] += rows[which, self.system.params.index(one.name)]
            found.setdefault("coloured_noise" if one.role == "noise" else f"{one.role}s", []).append(value)
        return {name: np.stack(values, axis=1) for name, values in found.items()}

    @property
    def record(self) -> np.ndarray:
        """Number of the record of each sample."""
        return np.cumsum(self.data.counts < 0)

    def _observed(self, params: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Outputs and their derivatives at the components ``x`` (T, n) of the state."""
        given = self.data.samples[:, : 1 + len(self.system.u)]
        columns = np.concatenate([self.smoother.place, self.smoother.processes, self.smoother.rate])
        samples = np.concatenate([given, x[:, columns]], axis=1)
        return np.asarray(self.observe(params, samples))

    def dataset(self, results: Arrays, coords: Mapping[str, Any]) -> xr.Dataset:
        """Label arrays of shape (chain, draw, T, m), and put the record beside them."""
        system, several = self.system, len(self.data.starts) > 1
        follower = {a: b for chain in system.kinematic_chains for a, b in pairwise(chain)}
        shown = {system.dx[s]: f"dx.{n}" for s, n in enumerate(system.states)}
        shown |= {system.dx[a]: system.states[b] for a, b in follower.items()}
        shown |= dict(zip(system.x, system.states, strict=True))
        variables: dict[str, Any] = {"measured": (("time", "output"), self.y)}
        for name, array in results.items():
            kind = name.removesuffix("_std").removesuffix("s")
            kind = {"derivative": "state", "coloured_noise": "coloured"}.get(kind, kind)
            variables[name] = (("chain", "draw", "time", kind), array)
        labels: dict[str, Any] = {
            "time": self.data.samples[:, 0],
            "state": list(system.states),
            "output": list(system.outputs),
            "shows": ("output", [shown.get(g, "") for g in system.g]),  # the state or derivative an output is
        }
        for role, dim in (("input", "input"), ("parameter", "parameter"), ("noise", "coloured")):
            if names := [one.name for one in system.latents if one.role == role]:
                labels[dim] = names
        if several:
            labels["record"] = ("time", self.record)
        for kind, entries in (("outputs", system.outputs), ("states", system.states)):
            for of in ("", "_std") if f"{kind}_std" in results else ("",):
                arrays = entries.variables(("chain", "draw", "time"), results[kind + of])
                vectors = {name + of: array for name, array in arrays.items() if entries.shapes[name]}
                variables = {k: v for k, v in vectors.items() if k not in labels} | variables
        found = xr.Dataset(variables, {**coords, **labels}, {"filter": self.name})
        return label_units(found, system.outputs, self.units)


def _over_draws(
    passes: Passes, idata: Any, draws: int | None, one: Callable[[list[np.ndarray], tuple[int, int]], Arrays]
) -> xr.Dataset:
    """Results of ``one`` for the draws of a posterior; NaN where the ODE cannot be solved."""
    names = [str(v.name) for v in passes.needed]
    posterior = _posterior(idata, names)
    total = posterior.sizes["draw"]
    if draws is not None and not (isinstance(draws, int | np.integer) and 1 <= draws <= total):
        raise ValueError(f"draws is {draws!r}, but idata has {total} draws in each chain; give an integer from 1 to {total}.")
    picked = np.arange(total) if draws is None else np.linspace(0, total - 1, draws).round().astype(int)
    columns = [
        (posterior[n].transpose("chain", "draw", ...).to_numpy(), v.dtype) for n, v in zip(names, passes.needed, strict=True)
    ]
    rows, failed = [], 0
    for c in range(posterior.sizes["chain"]):
        for d in picked:
            with np.errstate(all="ignore"):
                results = one([values[c, d].astype(dtype) for values, dtype in columns], (c, int(d)))
            if not all(np.isfinite(r).all() for r in results.values()):
                failed += 1
                results = {k: np.full_like(r, np.nan) for k, r in results.items()}
            rows.append(results)
    if failed:
        warnings.warn(
            f"the ODE could not be solved with the parameters of {failed} of {len(rows)} draws; their states are NaN. More "
            "substeps may help.",
            stacklevel=3,
        )
    shape = posterior.sizes["chain"], len(picked)
    stacked = {k: np.stack([r[k] for r in rows]).reshape(*shape, *rows[0][k].shape) for k in rows[0]}
    return passes.dataset(stacked, {"chain": posterior["chain"], "draw": posterior["draw"][picked]})


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
