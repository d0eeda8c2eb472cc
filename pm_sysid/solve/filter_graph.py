"""A system, a solver and records as one log-likelihood expression: what every layer above asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import substeps_by_run
from pm_sysid.solve.options import DENSE_LIMIT, Solver
from pm_sysid.steps.derived import completed
from pm_sysid.steps.ek import FLOOR, FilterSteps, Output, calibration_recurrence, filter_recurrence
from pm_sysid.steps.filter_state import Form, input_levels
from pm_sysid.steps.grid import FilterInputs, StepGrid, filter_inputs
from pm_sysid.steps.iwp import scales
from pm_sysid.steps.sensors import PLAIN, Sensors
from pm_sysid.symbolic.system import System

#: Largest dense filter given the ODE everywhere: its algebra is written out.
MOST_COMPONENTS = 20
#: Largest dense filter with steps that follow the solution whose algebra is written out.
WRITTEN_OUT = 16


class Unknowns(NamedTuple):
    """What a log-likelihood depends on besides the record; tensors or arrays.

    ``params`` (P,), ``x0`` and ``x0_std`` (R, n_x), ``noise`` (n_y,), ``diffusion`` (chains,; ignored when calibrated). Where
    records have parameters or noise of their own, ``params`` is (R, P) and ``noise`` (R, n_y). After the standard deviations,
    ``noise`` has the entries of the sensors (:class:`~pm_sysid.steps.sensors.Sensors`).
    """

    params: Any
    x0: Any
    x0_std: Any
    noise: Any
    diffusion: Any

    @property
    def own(self) -> bool:
        """Whether records have parameters of their own."""
        return (self.params.ndim if isinstance(self.params, Variable) else np.ndim(self.params)) == 2

    def params_of(self, record: int) -> Any:
        """Parameters of a record."""
        return self.params[record] if self.own else self.params

    def noise_of(self, record: int) -> Any:
        """Noise of a record."""
        return self.noise[record] if self.own else self.noise

    @classmethod
    def symbolic(cls, own: bool) -> Unknowns:
        """Inputs of a function that takes the unknowns of any records."""
        rows = pt.dmatrix if own else pt.dvector
        return cls(rows(), pt.dmatrix(), pt.dmatrix(), rows(), pt.dvector())


class RecordData(NamedTuple):
    """Arrays of a record at a number of substeps; tensors or arrays. ``scale`` (q+1,), the rest as in FilterInputs."""

    scale: Any
    counts: Any
    starts: Any
    substeps: Any
    samples: Any

    @classmethod
    def symbolic(cls) -> RecordData:
        """Inputs of a function that takes the arrays of any record."""
        return cls(pt.dvector(), pt.lvector(), pt.dmatrix(), pt.dmatrix(), pt.dmatrix())


@dataclass(frozen=True)
class Problem:
    """A system under a form of the filter; hashable, so that its recurrences are built once."""

    system: System
    form: Form
    calibrated: bool

    @classmethod
    def build(
        cls,
        system: System,
        solver: Solver,
        records: Sequence[TimeSeries],
        free: tuple[int, ...] = (),
        sensors: Sensors = PLAIN,
    ) -> Problem:
        """Form of the filter for records; ``free`` are the states whose initial value is uncertain."""
        form = replace(solver.form(system, records, free), sensors=sensors)
        return cls(system, form, solver.calibrated)

    def graded(self) -> Problem:
        """The same for steps of any lengths, each with a diffusion of its own if this is a dense EK1 that is not too large.

        Where the solution changes by orders of magnitude, so does what a step leaves out, and no constant diffusion describes
        it. The algebra of small filters is written out, since its gradients have a few more digits where parameters are far
        from what the record says; that of large ones would take minutes to compile.
        """
        if not self.may_follow:
            return replace(self, form=replace(self.form, uniform=False))
        rolled, dynamic = self._size > WRITTEN_OUT, self.form.dynamic or self.calibrated
        form = replace(self.form, uniform=False, dynamic=dynamic, rolled=rolled, graded=True)
        return Problem(self.system, form, calibrated=False)

    def everywhere(self) -> Problem:
        """The same with the measurements conditioned on the ODE at all times, or an error that says what stands against it."""
        _refuse_everywhere(self)
        return replace(self, form=replace(self.form, everywhere=True, rolled=False))

    @property
    def may_follow(self) -> bool:
        """Whether steps may follow a stiff solution: one without processes, whose paths no adaptive solver knows."""
        fit = not self.form.block and not self.system.latents and self._size <= DENSE_LIMIT
        return bool(self.form.linearisation) and fit

    @property
    def why_not_follow(self) -> str:
        """What to do so that steps may follow a stiff solution; nothing where they may, or never will."""
        most = DENSE_LIMIT // len(self.system.chain_states) - 1
        if self.may_follow or not self.form.linearisation or self.system.latents or most < 1:
            return ""
        return (
            f" Steps that follow a stiff solution are for one dense covariance of at most {DENSE_LIMIT} components: take "
            f"covariance='dense' and an order of at most {min(most, self.form.order)}."
        )

    @property
    def _size(self) -> int:
        """Components of a dense filter."""
        return (self.form.order + 1) * len(self.system.chain_states)

    @property
    def linearises_processes(self) -> bool:
        """Whether there are processes, and what is integrated out is no Gaussian: the system is not linear, or a sensor.

        Where all processes are noise and the sensors Gaussian, the states do not depend on them: nothing is linearised.
        """
        exact = self.form.sensors.gaussian and (self.system.linear or not self.system.driving)
        return bool(self.system.latents) and not exact

    @property
    def n_normals(self) -> int:
        """Standard normal numbers that a draw needs at each sample."""
        return len(self.system.g) + len(self.form.sensors.heavy)

    @property
    def steps(self) -> FilterSteps:
        """The symbolic steps."""
        return FilterSteps(self.system, self.form)

    @cached_property
    def input_levels(self) -> tuple[int, bool]:
        """Levels of input derivatives that the filter reads, and whether it reads both sides of a jump."""
        return input_levels(self.system, self.form)

    def data(self, records: Sequence[TimeSeries], substeps: int | Sequence[StepGrid]) -> RecordData:
        """Evaluate the inputs of records for a number of substeps a sample, or for the steps of each record."""
        n_levels, jumps = self.input_levels
        inputs: FilterInputs = filter_inputs(
            records,
            substeps=substeps,
            n_levels=n_levels,
            jumps=jumps,
            smoothness=self.form.smoothness,
            uniform=self.form.uniform,
        )
        return RecordData(scales(self.form.order, inputs.step), inputs.counts, inputs.starts, inputs.substeps, inputs.samples)

    def run(self, y: Any, unknowns: Unknowns, data: RecordData, output: Output = "loglik") -> tuple[Any, Any]:
        """Outputs (T, n) and final carry (R, n) of the filter as expressions.

        States, innovations and draws are those of the filter, which knows of the ODE up to a sample, whatever the likelihood.

        Parameters
        ----------
        y : tensor, shape (T, n_y)
            Measurements, NaN where missing (standard normal numbers for ``output="draw"``, ``n_normals`` of them a sample).
        """
        diffusion = self.calibrate(unknowns, data) if self.calibrated else unknowns.diffusion
        params = _rows(completed(self.system, unknowns.params), diffusion, unknowns.noise, data.scale)
        starts = pt.concatenate([unknowns.x0, unknowns.x0_std, data.starts], axis=1)
        samples = pt.concatenate([data.samples, y], axis=1)
        form = self.form if output == "loglik" else replace(self.form, everywhere=False)
        outputs, final = filter_recurrence(self.system, form, output)(params, starts, data.counts, data.substeps, samples)
        return outputs, final

    def calibrate(self, unknowns: Unknowns, data: RecordData) -> Any:
        """Quasi-maximum-likelihood diffusion of each chain, shape (chains,); Eq. 19.

        Records with parameters of their own have a diffusion of their own, (R, chains).
        """
        n_chains, n_y = len(self.system.chain_states), len(self.system.g)
        params = _rows(completed(self.system, unknowns.params), np.ones(n_chains), np.ones(n_y), data.scale)
        # Relations move the mean of an uncertain initial state; nothing else of it enters.
        std = unknowns.x0_std if self.system.relations else _zeros(unknowns.x0_std)
        starts = pt.concatenate([unknowns.x0, std, data.starts], axis=1)
        _, final = calibration_recurrence(self.system, self.form)(params, starts, data.counts, data.substeps, data.samples)
        if unknowns.own:
            steps = substeps_by_run(data.counts, unknowns.x0.shape[0])
            return pt.sqrt(final[:, -n_chains:] / pt.maximum(steps, 1)[:, None] + FLOOR**2)
        # Of one record there is nothing to add up, and a function less to compile.
        one = pt.as_tensor_variable(unknowns.x0).type.shape[0] == 1
        total = final[0, -n_chains:] if one else pt.sum(final[:, -n_chains:], axis=0)
        return pt.sqrt(total / pt.maximum(data.substeps.shape[0], 1) + FLOOR**2)


def _refuse_everywhere(problem: Problem) -> None:
    """Refuse what cannot be conditioned on the ODE everywhere.

    The ODE is no evidence on an uncertain initial state or on processes here, which a density given the ODE everywhere would
    have to undo; a relation has no density; and moment matching would have to be undone.
    """
    form, system = problem.form, problem.system
    size = (form.order + 1) * len(system.chain_states)
    chosen = "likelihood='fenrir'"
    if form.free:
        names = [system.states[i] for i in form.free]
        raise ValueError(
            f"{chosen} takes a known initial state, and that of {names} has an x0_std; give x0 without x0_std (a number, or a "
            "PyMC variable with its own prior, which is then sampled), or likelihood='filter', which integrates it out."
        )
    if system.latents:
        raise ValueError(f"{chosen} does not know latent, varying or coloured processes; use likelihood='filter' with them.")
    if system.relations:
        raise ValueError(f"{chosen} does not know relations; use likelihood='filter', or a system without them.")
    if not form.sensors.plain:
        raise ValueError(f"{chosen} takes Gaussian noise only, without limits or StudentT; use likelihood='filter' with them.")
    if form.block and len(system.chain_states) > 1:
        raise ValueError(
            f"{chosen} takes the joint covariance of all chains; choose covariance='dense' (this filter has {size} components, "
            f"and up to {MOST_COMPONENTS} are possible) or likelihood='filter'."
        )
    if size > MOST_COMPONENTS:
        raise ValueError(
            f"{chosen} is possible for up to {MOST_COMPONENTS} components, and a dense filter of order {form.order} with "
            f"{len(system.chain_states)} chains has {size}; choose a lower order or likelihood='filter'."
        )


def _zeros(matrix: Any) -> Any:
    """Zeros of the shape of a matrix: a constant where the shape is known."""
    shape = pt.as_tensor_variable(matrix).type.shape
    return pt.zeros_like(matrix) if None in shape else pt.constant(np.zeros(shape))


def _rows(params: Any, *shared: Any) -> Any:
    """Parameters of a recurrence, one after the other; each record has a row if ``params`` are a matrix."""
    params = pt.as_tensor_variable(params)
    if params.ndim == 1:
        return pt.concatenate([params, *shared])
    shared = tuple(pt.as_tensor_variable(v) for v in shared)
    n = params.shape[0]
    return pt.concatenate([params, *(v if v.ndim == 2 else pt.broadcast_to(v, (n, v.shape[0])) for v in shared)], axis=1)
