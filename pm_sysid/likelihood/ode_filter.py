"""The PN ODE filter as a PyMC distribution."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import ArrayLike
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, shown
from pm_sysid.likelihood.filter_rv import Grid, ODEFilterRV, numbers_in, shared, with_variables
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.records.joined import joined
from pm_sysid.records.remarks import at_a_limit, held, stood_still, wrapped
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.by_record import params_by_record, repeated, with_entries
from pm_sysid.solve.checks import (
    OF_FIT,
    check_channels,
    check_name,
    check_records,
    check_system,
    vector,
    warn_of_shared_noise,
)
from pm_sysid.solve.consistent_start import check_start
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.solve.filter_substeps import filter_substeps
from pm_sysid.solve.initial_state import StartSpec
from pm_sysid.solve.noise import measurement_noise, shared_noise
from pm_sysid.solve.options import EK0, EK1, Solver
from pm_sysid.steps.filter_state import Form
from pm_sysid.symbolic.driven import driven_system
from pm_sysid.symbolic.processes import Process
from pm_sysid.symbolic.system import System

_log = logging.getLogger("pm_sysid")


class ODEFilter:
    """Likelihood of a measured record under a dynamic system, by a probabilistic ODE filter.

    The equations of motion are solved by Gaussian filtering (an integrated Wiener process prior conditioned on the ODE),
    and the same filter sees the measurements, so that the likelihood carries measurement noise *and* integration error.

    Parameters
    ----------
    name : str
        Name of the random variable.
    system : System
        Equations of motion and outputs.
    data : TimeSeries or list of TimeSeries
        The measured record, or several; several are joined along time.
    params : mapping
        Value of each parameter of the system: a number, a PyMC variable, or an expression of them. A value with one
        dimension more than the parameter has an entry for each record, in their order: ``k`` of shape (n_records,) gives every
        specimen a stiffness of its own.
    noise : number, PyMC variable, sequence, mapping by output, StudentT, Correlated or function
        Standard deviation of the measurement noise, in the unit of the output; one for all outputs, or one for each. An array
        of the shape (n_records, n_outputs) has a row for each record; for a single output, or in a mapping, (n_records,) will
        do. :class:`StudentT` is for outliers (for all outputs, or in a mapping for some), :class:`Correlated` is a covariance
        between the outputs, and a function such as ``lambda y: pt.sqrt(0.01**2 + (0.05 * y) ** 2)`` gives the standard
        deviation by the output; it is evaluated at the predicted mean.
    x0 : number, mapping by state, sequence or vector, optional
        Initial state at the first sample (numbers or variables); for several records a list, or a mapping of arrays with an
        entry for each record. States that are not given are inferred from the first samples of the record with a wide
        ``x0_std``; refused if the first measured sample comes long after the first one.
    x0_std : number, mapping or sequence, optional
        Standard deviation of the initial state. Default: zero where ``x0`` is given.
    solver : EK0 or EK1, default EK1(order=4)
        The probabilistic solver.
    substeps : int, "auto" or array of int, shape (T - 1,), default "auto"
        Filter steps for each sampling interval. ``"auto"`` doubles them until the log-likelihood of records with the
        parameters of those prior draws that come nearest to ``data`` moves by less than 0.1, and says what it chose. Where the
        equations contain time, or functions of states and inputs that are no polynomials, it also looks at what happens between
        the steps, and warns of what 32 steps pass over.
        Where that is not enough and the system is stiff, the steps follow the solution: those that an adaptive implicit solver
        takes near the record, each cut into as many as the log-likelihood needs, with a diffusion for each step in place of
        ``"mle"``; the log says so. An array gives every sampling interval a number of its own (for several records a list of
        arrays), and each step a diffusion as well where the filter is a dense EK1 of up to 40 components.
        :func:`settle_substeps` judges them again at a mode or on a posterior and takes more if need be; :func:`set_substeps`
        sets another number.
    latent : mapping, optional
        Inputs of the system that the record lacks, each with the process that is its prior: :class:`Matern`, :class:`OU`,
        :class:`IntegratedWiener` or :class:`Periodic`, whose scales and lengths may be PyMC variables. They are integrated out.
        ``data`` has one channel for each of the other inputs.
    varying : mapping, optional
        Parameters that drift, each with the process that is added to its value: usually :class:`RandomWalk`. The entry in
        ``params`` is then the value at the first sample (for a process that starts at zero) or the middle.
    coloured : mapping, optional
        Outputs whose noise is not white, each with the process that is added to it beside ``noise``, such as
        ``{"y": sid.OU(scale=0.1, length=2.0)}``. It is integrated out.
    limits : (lower, upper) or mapping by output, optional
        Values that the sensor cannot leave, in the unit of the output; None for no limit. A sample at a limit or beyond counts
        as the probability of a value at least as far out. A record that begins at a limit needs ``x0`` and ``x0_std``.
    likelihood : {"filter", "fenrir"}
        ``"filter"`` is the recursion of the sequential paper (Eq. 20): at each sample the filter knows the ODE so far and the
        measurements so far, and linearises where these have moved it. ``"fenrir"`` is the density of the record given the ODE
        at all times, linearised along the solution that no measurement has moved (Tronarp, Bosch and Hennig 2022). The two
        agree where the steps are small enough, and the second costs about twice as much; see
        :doc:`/how_to/likelihoods` for when it helps. It takes a known ``x0`` (numbers or PyMC variables), a dense covariance
        and Gaussian noise. States, innovations and predictions are the filter's under both.
    dims : tuple of str, optional
        Dimension names for (time,) or (time, output); by default ``name_time`` and ``name_output`` with coordinates.

    Returns
    -------
    TensorVariable
        Shape (T,) or (T, n_y), like ``data.y``; observed on it. Its pointwise log-likelihood has the same shape.

    Raises
    ------
    ValueError, TypeError
        For unknown or missing parameters, channels that do not fit, records whose known units contradict each other,
        impossible settings; the message says the remedy.

    Warns
    -----
    UserWarning
        If outputs whose sizes differ by more than a factor of 20 share one noise.

    Notes
    -----
    Given the path of a process, the filter is the one for a recorded input; the likelihood is the average of its
    likelihoods over the prior of the path (exact for linear systems, linearised along the mean otherwise). The ODE is no
    evidence on the path, and the diffusion of the solver does not scale it: with ``"mle"`` it is the one for which Eq. 19
    holds on average over the process.

    What a sample says by its limits or under :class:`StudentT` enters by the exact mean and covariance of the states given it,
    which the filter then takes for Gaussian; a covariance and coloured noise are exact.

    Missing measurements (NaN) contribute zero. Parameters with which the solver ends in infinite or undefined numbers have a
    log-likelihood of minus infinity. A step may pass over a time at which the solution ceases to exist (a pole of x' = x^2),
    and give a finite one: finer steps show that, as :func:`check_substeps` and :func:`sample` look for it. Use
    :func:`set_data` to put another record into the model.

    Relations of the system (``System(relations=...)``) are conditioned on as the ODE is: linearised, as observations without
    noise of the solution, not of the record. An uncertain initial state is first restricted to them; a known one that
    contradicts them by more than 1e-6 of their terms is refused, and impossible where it comes from variables. ``"mle"``
    counts the residuals of the ODE alone, in a pass that keeps to the relations too. Relations that tie several chains
    together need a dense covariance.

    Where records have parameters of their own, the log-likelihood is that of a filter for each record, with a diffusion
    (``"mle"``) of its own; all of them are one call of one compiled function.

    Source: Longbottom, Champneys and Rogers (2024), Eqs. 12-20; for ``"fenrir"`` Tronarp, Bosch and Hennig (2022), "Fenrir:
    Physics-enhanced regression for initial value problems".

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 2.0, 21)
    >>> record = sid.TimeSeries(t, None, np.exp(-1.5 * t))
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate", 0.0, 1.0)
    ...     y = sid.ODEFilter("y", decay, record, dict(rate=rate), noise=0.01, x0=1.0, substeps=2)
    >>> model.rvs_to_values[y].type.ndim
    1
    """

    def __new__(
        cls,
        name: str,
        system: System,
        data: TimeSeries | Sequence[TimeSeries],
        params: Mapping[str, Any],
        *,
        noise: Any,
        x0: Any = None,
        x0_std: Any = None,
        solver: Solver | None = None,
        substeps: int | Literal["auto"] | ArrayLike = "auto",
        latent: Mapping[str, Process] | None = None,
        varying: Mapping[str, Process] | None = None,
        coloured: Mapping[str, Process] | None = None,
        limits: Any = None,
        likelihood: Literal["filter", "fenrir"] = "filter",
        dims: Sequence[str] | str | None = None,
    ) -> Any:
        """Build the random variable and register it in the model on the context stack."""
        model = pm.modelcontext(None)
        check_name(name)
        if not among(likelihood, ("filter", "fenrir")):
            raise ValueError(f"likelihood is {likelihood!r}; choose 'filter' or 'fenrir'.")
        check_system(system)
        if not system.states:
            raise ValueError(
                "the system has no states, so that there is no ODE to filter; give its output to a likelihood of PyMC, such as "
                "pm.Normal(name, pm_sysid.simulate(system, data, params), noise, observed=data.y)."
            )
        solver = EK1() if solver is None else solver
        if not isinstance(solver, Solver):
            raise TypeError(f"solver is {solver!r}; give pm_sysid.EK0(...) or pm_sysid.EK1(...).")
        alone, (system, entries) = system, driven_system(system, latent, varying, coloured)
        records = check_records(system, data)
        measured = joined(records)
        at_limits = at_a_limit(records) if limits is None else ""
        for remark in (held(records), at_limits, wrapped(records), stood_still(records)):
            if remark:
                _log.warning("%s: %s", name, remark)
        found = measurement_noise(system, noise, limits, records)
        theta, deviations = params_by_record(alone, params, len(records)), found.values
        theta = with_entries(theta, vector(entries)) if entries else theta
        deviations = with_entries(deviations, vector(found.entries)) if found.entries else deviations
        if theta.ndim != deviations.ndim:  # one of them has a value for each record, and the other follows
            theta, deviations = repeated(theta, len(records)), repeated(deviations, len(records))
        warn_of_shared_noise(system, measured.y, shared_noise(noise))
        if not isinstance(dims, str | tuple | list | None):
            raise TypeError(f"dims is {shown(dims)}; give the name of a dimension, or a tuple of them.")

        start = StartSpec.of(x0, x0_std, len(records), system.states)
        means, stds = start.states(system, records, found.sensors)
        check_start(system, records, params, means, stds)
        free = tuple(i for i, column in enumerate(zip(*stds, strict=True)) if any(_uncertain(s) for s in column))

        problem = Problem.build(system, solver, records, free, found.sensors)
        problem = problem.everywhere() if likelihood == "fenrir" else problem
        diffusions = solver.diffusions(system)
        diffusion = vector([1.0] * len(system.chain_states) if diffusions is None else diffusions)
        if problem.form.block and solver.covariance == "auto":
            _log.info("covariance='auto' chose one block for each of the %d chains.", len(system.chains))
        if problem.linearises_processes:
            _log.info(
                "%r linearises about its processes; after sampling, check_processes (in sample and report) measures what that "
                "costs.",
                name,
            )
        elif free and not (system.linear and found.sensors.gaussian) and not system.relations:
            _log.info(
                "the initial state of %r is uncertain and integrated out linearised; after sampling, check_initial_state (in "
                "sample and report) measures what that costs.",
                name,
            )
        if (caught := found.sensors.censored(measured.y)).any():
            _log.info("%s: %d of %d samples are at a limit.", name, caught.sum(), caught.size)
        x0, x0_std = (with_variables(numbers_in(rows), rows) for rows in (means, stds))
        unknowns = Unknowns(theta, x0, x0_std, deviations, diffusion)
        choice = filter_substeps(problem, records, unknowns, substeps, model, name)

        problem = problem if choice.grids is None else problem.graded()
        arrays, x0, x0_std = shared(name, problem.data(records, choice.steps()), means, stds)
        unknowns, grid = unknowns._replace(x0=x0, x0_std=x0_std), Grid(records, choice)
        rv = ODEFilterRV.rv_op(problem, unknowns, arrays, flat=measured.flat, grid=grid, start=start.numeric())
        if dims is None:
            time, output = f"{name}_time", f"{name}_output"
            model.add_coord(time, measured.time, length=pytensor.shared(len(measured.y), time))
            if not measured.flat:
                model.add_coord(output, system.outputs)
            dims = (time,) if measured.flat else (time, output)
        return model.register_rv(rv, name, observed=pytensor.shared(measured.observed, f"{name}::y"), dims=dims)


def _uncertain(std: Any) -> bool:
    return isinstance(std, Variable) or std != 0.0


def set_data(new_data: Mapping[str, TimeSeries | Sequence[TimeSeries]], model: pm.Model | None = None) -> None:
    """Put new records, of any length, into the ODE filters of a model: ``pm.set_data`` for records.

    The record's input is evaluated where the filter needs it; measurements, time coordinate and what of the initial
    state was read off the record are replaced. The sampling must have the same character as before (intersample
    behaviour, uniform or not). A filter whose steps follow the solution of its record, or were given for each sampling
    interval, takes new measurements at the same times with the same inputs.

    Parameters
    ----------
    new_data : mapping
        Record (or list of records, as many as before) by the name of the filter.
    model : pm.Model, optional
        Default: the model on the context stack.

    Raises
    ------
    ValueError, TypeError
        If the filter was not built for such a record: by its channels, their units where these are known, its sampling, or the
        number of records.
    """
    if not isinstance(new_data, Mapping):
        raise TypeError(f"new_data is {type(new_data).__name__}; give a dict of records by the name of their filter.")
    for name, data in new_data.items():
        view = filter_view(name, model)
        op, problem = view.op, view.problem
        records = check_records(problem.system, data)
        for r, record in enumerate(records):
            check_channels(f"new_data[{name!r}]" + f"[{r}]" * (len(records) > 1), record, OF_FIT, op.grid.records)
        if op.grid.choice.grids is not None and not _same_run(records, op.grid.records):
            raise ValueError(
                f"the steps of {name!r} are those of its record (they follow its solution, or were given for each sampling "
                "interval), and the new one has other times or inputs; build a new model for it."
            )
        if op.grid.choice.grids is None and _form_for(problem, records) != problem.form:
            raise ValueError(
                f"the new record for {name!r} differs from the old one in intersample behaviour or in being uniformly "
                "sampled, for which the filter was built; build a new model for it."
            )
        arrays = problem.data(records, op.grid.choice.steps())
        n_records = view.n_records
        if len(records) != n_records:
            raise ValueError(
                f"{name!r} was built for {n_records} records and got {len(records)}; give as many, or build a new model."
            )
        starts = op.start.states(problem.system, records, problem.form.sensors)  # may refuse, before anything has changed
        view.put(arrays, tuple(np.array(rows, dtype=float) for rows in starts))
        op.grid.records = records
        measured = joined(records)
        view.observed.set_value(measured.y[:, 0] if op.flat else measured.y)
        time = f"{name}_time"
        if time in view.model.dim_lengths:
            view.model.set_dim(time, len(measured.y), coord_values=measured.time)


def _same_run(records: Sequence[TimeSeries], before: Sequence[TimeSeries]) -> bool:
    """Whether records have the times and the inputs of others; their measurements may be others."""
    return len(records) == len(before) and all(
        np.array_equal(a.t, b.t) and a.intersample == b.intersample and np.array_equal(a.input_matrix, b.input_matrix)
        for a, b in zip(records, before, strict=True)
    )


def _form_for(problem: Problem, records: Sequence[TimeSeries]) -> Form:
    """Form of a filter like an existing one for other records."""
    form = _solver_like(problem).form(problem.system, records, problem.form.free)
    form = replace(form, sensors=problem.form.sensors, everywhere=problem.form.everywhere)
    return replace(form, rolled=problem.form.rolled) if form.everywhere else form


def _solver_like(problem: Problem) -> Solver:
    """Solver whose form for new records can be compared with an existing problem's."""
    form = problem.form
    diffusion = "mle" if problem.calibrated else "dynamic" if form.dynamic else 1.0
    cls = EK1 if form.linearisation else EK0
    return cls(order=form.order, diffusion=diffusion, covariance="block" if form.block else "dense")
