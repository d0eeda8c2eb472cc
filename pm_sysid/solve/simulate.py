"""Free runs: many parameter sets, accuracy checked by step doubling, or one symbolic expression."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from pymc import Model
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, seed
from pm_sysid.compat import MissingInputError
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import label_units
from pm_sysid.solve.checks import check_params, check_records, check_system, spread_numbers, vector
from pm_sysid.solve.driven_runs import FEWEST, driven_runs
from pm_sysid.solve.initial_state import initial_state
from pm_sysid.solve.run_substeps import EqualSteps, RunSteps, all_runs, checked_method, run_substeps
from pm_sysid.solve.substeps import SubstepWarning, evaluate_at_initial_point, given_steps
from pm_sysid.steps.derived import completed
from pm_sysid.steps.grid import StepGrid
from pm_sysid.steps.integrate import INTEGRATORS, Method, method_inputs, run_recurrence
from pm_sysid.symbolic.driven import driven_system
from pm_sysid.symbolic.processes import Process
from pm_sysid.symbolic.system import System


def simulate(
    system: System,
    data: TimeSeries,
    params: Mapping[str, Any],
    *,
    x0: Any = None,
    substeps: int | Literal["auto"] | ArrayLike = "auto",
    method: Literal["auto", "rk4", "implicit"] = "auto",
    distance: Literal["nmse"] | None = None,
    latent: Mapping[str, Process] | None = None,
    varying: Mapping[str, Process] | None = None,
    random_seed: Any = None,
) -> Any:
    """Free run of a system on the input of a record, by the classical Runge-Kutta method or an implicit one.

    Parameters
    ----------
    system : System
        Equations of motion and outputs.
    data : TimeSeries
        Times and inputs; ``y`` is used only to infer an initial state that is not given.
    params : mapping
        Value of each parameter: numbers, or arrays of the shapes of vectors and matrices; arrays of draws
        (``xarray.DataArray`` with any dims, such as those of ``idata.posterior``, or NumPy arrays of one shape, before the
        dimensions of a vector or matrix), or PyTensor variables. Entries that are no parameter of the
        system are an error, except in a Dataset, of which the parameters are picked.
    x0 : number, mapping by state, sequence or vector, optional
        Initial state; entries may be arrays of draws too. By default read off the first samples of ``y`` where an output
        shows the state, and zero elsewhere.
    substeps : int, "auto" or array of int, shape (T - 1,), default "auto"
        Steps in each sampling interval, or a number for each of them. ``"auto"`` doubles them until the outputs of the first,
        middle and last parameter set move by less than 1e-4 of their root mean square. Implicit steps of a stiff system are
        doubled until outputs and states move by less than 1e-6, if that can be reached; where equal steps would be more, they
        follow the solution: those of an adaptive solver, cut. What is given is obeyed and checked. ``attrs["substeps"]`` of the
        result is the number, or an array of numbers.
    method : {"auto", "rk4", "implicit"}, default "auto"
        ``"rk4"`` is the classical Runge-Kutta method, ``"implicit"`` the Rosenbrock method Rodas5P for stiff equations, of
        order five and L-stable. ``"auto"`` takes the first, and the second where no number of Runge-Kutta steps is enough (or
        the number given lets the runs diverge) and the system is stiff; the log and ``attrs["integrator"]`` say so.
    distance : "nmse", optional
        Return only how far each run is from ``data.y`` (see :func:`nmse`), summed up along the way: no run is stored, so
        that millions of parameter sets can be compared with a long record.
    latent, varying : mapping, optional
        Processes, with numbers for their scales and lengths, for inputs that the record lacks and for the drift of
        parameters, as for :class:`ODEFilter`: each run has paths drawn from them. The Runge-Kutta method then takes at least
        eight steps in a sampling interval.
    random_seed : int or numpy.random.Generator, optional
        Seed of the paths.

    Returns
    -------
    xarray.Dataset or TensorVariable
        Outputs and states with dims ``(*draw dims, "time")``, of a vector ``q`` with ``"q_dim_0"`` behind; with a
        ``distance``, that for each output with the dims of the draws alone, infinite where a run diverges. With a PyTensor
        variable among the parameters or initial states: a differentiable expression of shape (T,), or (T, n_y) for
        several outputs. Processes add their values as variables with the names of the inputs and parameters.

    Raises
    ------
    ValueError, TypeError
        For unknown or missing parameters, arrays of different shapes, a record that does not fit the system.

    Warns
    -----
    SubstepWarning
        Where the steps are too coarse, or a run is not finite: which state, from when on, at which parameters, and what to do.

    Notes
    -----
    A parameter set with which the solution diverges gives NaN or infinite outputs from there on, not an error. Parameter
    sets run side by side on all cores (see :func:`set_threads`).

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> record = sid.TimeSeries(np.linspace(0.0, 1.0, 11), None, None)
    >>> run = sid.simulate(decay, record, dict(rate=np.array([1.0, 2.0])), x0=1.0)
    >>> run["y"].dims
    ('draw', 'time')
    >>> np.allclose(run["y"][:, -1], np.exp([-1.0, -2.0]), rtol=1e-4)
    True
    """
    processes = latent, varying
    return _simulate(system, data, params, x0, substeps, method, distance, processes=processes, random_seed=random_seed)


def simulate_by_equal_steps(
    system: System, data: TimeSeries, params: Mapping[str, Any], *, x0: Any, substeps: Any = "auto", method: Any = "auto"
) -> Any:
    """Free runs as by :func:`simulate`, with one number of steps for all sampling intervals: for what takes a number."""
    return _simulate(system, data, params, x0, substeps, method, None, graded=False)


def _simulate(
    system: System,
    data: TimeSeries,
    params: Any,
    x0: Any,
    substeps: Any,
    method: Any,
    distance: Any,
    graded: bool = True,
    processes: tuple[Any, Any] = (None, None),
    random_seed: Any = None,
) -> Any:
    check_system(system)
    if not isinstance(data, TimeSeries):
        raise TypeError(f"data is {type(data).__name__}; give a TimeSeries (simulate several one by one).")
    if not (distance is None or among(distance, ("nmse",))):
        raise ValueError(f"distance is {distance!r}; give 'nmse', or None for the runs themselves.")
    system, entries = driven_system(system, *processes)
    seed(random_seed)
    if system.driving and any(isinstance(v, Variable) for v in entries):
        raise ValueError(
            "latent and varying have PyMC variables, but draw paths of given numbers; give the processes numbers, or draw from "
            "the model (pm.sample_prior_predictive, predict)."
        )
    if system.driving and (distance is not None or method == "implicit"):
        raise ValueError(
            "latent and varying draw paths for runs by the Runge-Kutta method; leave out distance, and method='implicit'."
        )
    (record,) = check_records(system, data, need_y=distance is not None)
    if "time" in (*system.states, *system.outputs):
        raise ValueError("a state or output is named 'time', which is the dimension of the result; rename it.")
    steps_given, method = _steps(substeps, record), checked_method(method)
    if isinstance(x0, list | tuple) and len(x0) == len(system.states):
        x0 = dict(zip(system.states, x0, strict=True))
    if isinstance(params, xr.Dataset | xr.DataTree):
        params = {name: xr.DataArray(params[name]) for name in system.params.shapes if name in params}
    if isinstance(params, Mapping):
        params = system.params.draws("params", params)
        if entries:  # of the processes given here; a system that has some already has theirs among the parameters
            params |= dict(zip(system.params[len(system.base.params) :], entries, strict=True))
    if isinstance(x0, Mapping):
        x0 = system.states.draws("x0", spread_numbers(system.states, x0))
    if isinstance(params, Mapping) and any(isinstance(v, Variable) for v in _flat(params, x0)):
        if system.driving:
            raise ValueError("latent and varying draw paths, which no expression can; give numbers for params and x0.")
        if distance is not None:
            raise ValueError(f"distance={distance!r} needs numbers for params and x0; write it out for PyTensor variables.")
        return _symbolic(system, record, params, x0, steps_given, method)
    if system.driving:
        return simulate_driven(system, record, params, x0, steps_given, np.random.default_rng(random_seed))
    theta, start, dims, coords = _draws(system, record, params, x0)
    measured = None if distance is None else record.output_matrix
    values, steps = all_runs(system, record, theta, start, steps_given, method, measured, graded)
    attributes = {**_substeps_attrs(steps.substeps), "integrator": INTEGRATORS[steps.method]}
    if measured is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = 100 * values[:, 0] / np.sum(~np.isnan(measured), axis=0) / np.nanvar(measured, axis=0)
        values = values.reshape(*dims.values(), len(system.outputs))
        return xr.Dataset(system.outputs.variables(tuple(dims), values), coords, attributes)
    values = values.reshape(*dims.values(), len(record), values.shape[-1])
    result = xr.Dataset(run_variables(system, (*dims, "time"), values), {**coords, "time": record.t}, attributes)
    return _with_units(result, system, record)


def _with_units(run: xr.Dataset, system: System, record: TimeSeries) -> xr.Dataset:
    """Runs with the units of a record, if it has the outputs of the system."""
    alike = len(record.outputs) == len(system.outputs)
    units = {n: record.units[o] for o, n in zip(record.outputs, system.outputs, strict=False) if alike and o in record.units}
    return label_units(run, system.outputs, units)


def simulate_driven(
    system: System,
    record: TimeSeries,
    params: Mapping[str, Any],
    x0: Any,
    substeps: int | Literal["auto"] | StepGrid,
    rng: np.random.Generator,
) -> xr.Dataset:
    """Runs of a system with processes, of which ``params`` has the entries, each on paths that are drawn."""
    theta, start, dims, coords = _draws(system, record, params, x0)
    if isinstance(substeps, StepGrid):
        raise ValueError(
            "latent and varying take one number of substeps for all sampling intervals; give an integer or 'auto'."
        )
    if substeps == "auto":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SubstepWarning)  # of a run without the processes
            chosen = all_runs(system, record, theta[:1], start[:1], "auto", "rk4", None, graded=False)[1].substeps
        assert isinstance(chosen, int)
        substeps = chosen
    found = driven_runs(system, record, theta, start, substeps, rng)
    shape = (*dims.values(), len(record))
    variables = run_variables(system, (*dims, "time"), found.values.reshape(*shape, -1))
    for i, one in enumerate(system.driving):
        variables.setdefault(one.name, ((*dims, "time"), found.paths[..., i].reshape(shape)))
    attributes = {"substeps": max(substeps, FEWEST), "integrator": INTEGRATORS["rk4"]}
    return _with_units(xr.Dataset(variables, {**coords, "time": record.t}, attributes), system, record)


def steps_of(run: xr.Dataset) -> RunSteps:
    """How the runs that :func:`simulate` returned were integrated."""
    (method,) = (m for m, name in INTEGRATORS.items() if name == run.attrs["integrator"])
    given = run.attrs["substeps"]
    return RunSteps(StepGrid(given, run.attrs["step_ends"]) if np.ndim(given) else int(given), method)


def equal_steps_of(run: xr.Dataset) -> EqualSteps:
    """How the runs that :func:`simulate_by_equal_steps` returned were integrated."""
    steps = steps_of(run)
    assert isinstance(steps.substeps, int)
    return EqualSteps(steps.substeps, steps.method)


def _steps(substeps: Any, record: TimeSeries) -> int | Literal["auto"] | StepGrid:
    """What was asked for, checked."""
    if isinstance(substeps, StepGrid):
        return substeps
    given = given_steps(substeps, [record])
    return given[0] if isinstance(given, tuple) else given


def _substeps_attrs(substeps: int | StepGrid) -> dict[str, Any]:
    """Steps as attributes: a number; or a number for each interval, and where each step ends as a share of its interval."""
    if isinstance(substeps, StepGrid):
        return {"substeps": substeps.counts, "step_ends": substeps.ends}
    return {"substeps": substeps}


def run_variables(system: System, dims: Sequence[str], values: np.ndarray) -> dict[str, Any]:
    """Outputs, then states, of runs (..., n_y + n_x) as variables of a Dataset; an output hides a state of its name."""
    n_y = len(system.outputs)
    outputs, states = system.outputs.variables(dims, values[..., :n_y]), system.states.variables(dims, values[..., n_y:])
    return outputs | {name: variable for name, variable in states.items() if name not in outputs}


def _flat(params: Mapping[str, Any], x0: Any) -> list[Any]:
    """Everything that could be a variable."""
    starts = list(x0.values()) if isinstance(x0, Mapping) else list(x0) if isinstance(x0, list | tuple) else [x0]
    return [*params.values(), *starts]


def _draws(
    system: System, record: TimeSeries, params: Mapping[str, Any], x0: Any
) -> tuple[np.ndarray, np.ndarray, dict[str, int], dict[str, Any]]:
    """Parameter sets (N, P), initial states (N, n_x), and the dims and coordinates of the draws."""
    scalars = {k: 0.0 if _is_array(v) else v for k, v in params.items()} if isinstance(params, Mapping) else params
    check_params(system, scalars)
    given = {k: 0.0 if _is_array(v) else v for k, v in x0.items()} if isinstance(x0, Mapping) else x0
    has_y = record.y is not None and record.output_matrix.shape[1] == len(system.outputs)
    means, _ = initial_state(system, record, given if has_y or given is not None else 0.0, 0.0, hidden="zero")
    arrays = {**{k: params[k] for k in system.params}}
    starts: dict[str, Any] = dict(zip(system.states, means, strict=True))
    if isinstance(x0, Mapping):
        starts |= {k: v for k, v in x0.items() if _is_array(v)}
    labelled = [xr.DataArray(v) for v in (*arrays.values(), *starts.values()) if isinstance(v, xr.DataArray)]
    plain = {np.shape(v) for v in (*arrays.values(), *starts.values()) if _is_array(v) and not isinstance(v, xr.DataArray)}
    if len(plain) > 1 or (plain and labelled):
        raise ValueError(
            f"params and x0 hold arrays of the shapes {sorted(plain)}{' beside DataArrays' if labelled else ''}; "
            "give arrays of one shape, or DataArrays with named dims."
        )
    if labelled:
        template = xr.broadcast(*labelled)[0]
        dims = {str(d): int(n) for d, n in template.sizes.items()}
        coords = {d: template.coords[d] for d in dims if d in template.coords}
    else:
        shape = plain.pop() if plain else ()
        names = ("draw",) if len(shape) == 1 else tuple(f"draw_dim_{i}" for i in range(len(shape)))
        dims, coords = dict(zip(names, shape, strict=True)), {}
        template = None
    shape = tuple(dims.values())

    def expand(value: Any) -> Any:
        if template is None or not _is_array(value):
            return value
        return xr.DataArray(value).broadcast_like(template).transpose(*dims)

    columns = [np.broadcast_to(np.asarray(expand(v), float), shape).ravel() for v in (*arrays.values(), *starts.values())]
    n = int(np.prod(shape))
    table = np.stack(columns, axis=1) if columns else np.empty((n, 0))
    return np.ascontiguousarray(table[:, : len(arrays)]), np.ascontiguousarray(table[:, len(arrays) :]), dims, coords


def _is_array(value: Any) -> bool:
    return not isinstance(value, Variable) and np.ndim(value) > 0


def _symbolic(
    system: System,
    record: TimeSeries,
    params: Mapping[str, Any],
    x0: Any,
    substeps: int | Literal["auto"] | StepGrid,
    method: Method | Literal["auto"],
) -> Any:
    """Differentiable outputs of one parameter set."""
    theta = vector(check_params(system, params))
    has_y = record.y is not None and record.output_matrix.shape[1] == len(system.outputs)
    means, _ = initial_state(system, record, x0 if has_y or x0 is not None else 0.0, 0.0, hidden="zero")
    start = vector(means)
    try:
        model: Model | None = Model.get_context(error_if_none=False)
        values = evaluate_at_initial_point([theta, start], model)
        steps = run_substeps(system, record, values[0][None], values[1][None], substeps, method)
    except MissingInputError as error:
        if substeps == "auto":
            raise ValueError(
                "substeps='auto' needs values to judge the step at, and a variable among params or x0 has none here; give a "
                "number of substeps, or call simulate inside the model that has the variable."
            ) from error
        steps = RunSteps(substeps, "rk4" if method == "auto" else method)
    inputs, recurrence = method_inputs(record, *steps), run_recurrence(system, steps.method)
    outputs, _ = recurrence(completed(system, theta), start[None], inputs.counts, inputs.substeps, inputs.samples)
    n_y = len(system.outputs)
    flat = n_y == 1 and (record.y is None or record.y.ndim == 1)
    return outputs[:, 0] if flat else outputs[:, :n_y]
