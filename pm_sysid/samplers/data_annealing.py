"""Data Annealing: a Metropolis chain whose likelihood takes the samples of a record in while it tunes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np
import pymc as pm
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from pm_sysid.context import model_of
from pm_sysid.doors import among, place, seed, shown
from pm_sysid.samplers.journal import Journal
from pm_sysid.samplers.prefix import Evaluation, Prefix
from pm_sysid.samplers.proposals import WIDTH, is_number, proposal_widths, whole_samples

_log = logging.getLogger("pm_sysid")

type Schedule = Literal["linear", "geometric", "adaptive"] | Callable[[float], float]

#: Acceptance that adapted widths aim at.
TARGET_ACCEPTANCE = 0.234
#: What changes along a chain, besides its point and its generator.
CHANGING = ("draw", "n_data", "accept_rate", "log_scaling", "centre", "spread")
#: Draws over which the acceptance that the progress bar shows is averaged.
MEMORY = 100


@dataclass_state
class DataAnnealingState(StepMethodState):
    """What changes along a chain, and the settings that must be the same to go on with it."""

    tune: bool
    draw: int
    n_tune: int
    n_data: int
    accept_rate: float
    log_scaling: float
    centre: np.ndarray
    spread: np.ndarray
    n_start: int = field(metadata={"frozen": True})
    adapt_widths: bool = field(metadata={"frozen": True})
    widths: np.ndarray = field(metadata={"frozen": True})


class DataAnnealing(BlockedStep):
    """Data Annealing (Green 2015), as a step method for ``pm.sample``.

    Metropolis with a one-dimensional Cauchy proposal for each parameter: a local search with occasional long jumps. While
    PyMC tunes, the likelihood has only the first samples of the record, and more with each draw, so that at first the prior
    dominates, the chain moves freely past what would be local traps of the full posterior, and a draw costs little. From the
    first draw after tuning on it is an ordinary Metropolis chain with everything fixed: all samples, the same widths.

    Parameters
    ----------
    vars : list of variables, optional
        What to move; other variables are left to other step methods. Default: all free variables of the model.
    widths : positive number, or mapping of variable name to number or array, default 0.005
        Width (half of the interquartile range) of the Cauchy proposals in unconstrained space: of logarithms for positive
        variables. A variable that a mapping leaves out has 0.005.
    schedule : {"linear", "geometric", "adaptive"} or callable
        Number of samples in the likelihood during tuning. ``"linear"`` (the paper's): the same number of new samples every
        draw. ``"geometric"``: the same percentage. ``"adaptive"``: as many as explain themselves: new samples are added
        until the current parameters have lost ``max_drop`` of log-likelihood against what they have on average for samples
        already in, but at least as many as by ``"geometric"``. A callable gets the fraction of the tuning draws done, from 0
        (first draw) to just below 1, and returns the number of samples, which is rounded down and must not decrease.
    n_start : int, default 2
        Number of samples at the first draw.
    model : pm.Model, optional
        Default: the model on the context stack.
    adapt_widths : bool, default False
        During tuning, scale the widths to the spread of the chain's recent draws and to an acceptance of 0.234.
    max_drop : float, default 3.0
        Bound of the adaptive schedule, in units of log-likelihood.
    checkpoint : path, optional
        Folder in which each chain keeps its draws, every ten seconds, so that a killed run goes on where it was: the same call
        again, with the same ``random_seed`` of ``pm.sample``, repeats the known draws at once and ends as if it had never
        been interrupted. All the variables must be moved by this step.
    rng : optional
        Seed or generator; ``pm.sample`` brings its own.

    Raises
    ------
    ValueError, TypeError
        For settings out of range, and for models whose log-likelihood is not a series (see :class:`Target`).

    Notes
    -----
    The paper's own run: ``pm.sample(draws=48_000, tune=2000, step=sid.DataAnnealing())``, on logarithms of the parameters.
    Keep the draws of the annealing phase with ``discard_tuned_samples=False``, and see them with :func:`plot_annealing`.

    Statistics of a draw: ``n_data``, samples in the likelihood; ``evaluations``, samples that the likelihood was computed
    for (its sum is the cost of the run); ``accepted``; ``accept``, the acceptance probability; ``accept_rate``, its average
    over about the last 100 draws; ``scaling``, by which adaptation has multiplied the widths (geometric mean);
    ``model_logp`` (``lp`` in the result), the log-density of the draw given ``n_data`` samples.

    The log-likelihood of the current parameters under the grown prefix is known some samples ahead, and evaluated anew when
    these are used up. While samples are added, a diffusion calibrated by ``"mle"`` comes from a part of the prefix (at least
    half of it, or 256 samples); once all are in, from all, so that the stationary distribution is the model's posterior.

    Source: Green (2015), Mechanical Systems and Signal Processing 52-53, 133-146; Eqs. 21-22 and section 4. The adaptive
    schedule is this package's (section 5 of the paper names the wish). Widths and schedule have to be chosen there, too.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=[0.5, -0.5, 1.0, 0.2])
    ...     step = sid.DataAnnealing(widths=0.5)
    ...     quiet = dict(progressbar=False, compute_convergence_checks=False)
    ...     idata = pm.sample(50, tune=2, step=step, chains=1, random_seed=1, discard_tuned_samples=False, **quiet)
    >>> idata.warmup_sample_stats["n_data"].values, idata.sample_stats["n_data"].values[0, :3]
    (array([[2, 3]]), array([4, 4, 4]))
    """

    name = "data_annealing"
    default_blocked = True
    stats_dtypes_shapes: dict[str, tuple[type, list[int]]] = {  # noqa: RUF012
        "n_data": (int, []),
        "evaluations": (int, []),
        "accepted": (np.float64, []),  # as of PyMC's Metropolis, beside which it may stand
        "accept": (np.float64, []),
        "accept_rate": (np.float64, []),
        "scaling": (np.float64, []),
        "model_logp": (np.float64, []),
    }
    _state_class = DataAnnealingState

    def __init__(
        self,
        vars: Any = None,
        *,
        widths: float | Mapping[str, Any] = WIDTH,
        schedule: Schedule = "linear",
        n_start: int = 2,
        model: pm.Model | None = None,
        adapt_widths: bool = False,
        max_drop: float = 3.0,
        checkpoint: str | os.PathLike[str] | None = None,
        rng: Any = None,
        blocked: bool = True,
        **kwargs: Any,
    ) -> None:
        unknown = [k for k in kwargs if k not in ("initial_point", "compile_kwargs")]  # PyMC may pass these
        if unknown:
            raise TypeError(
                f"DataAnnealing has no argument {unknown[0]!r}; it has widths, schedule, n_start, adapt_widths, ..."
            )
        model = model_of(model)
        self.vars = model.value_vars if vars is None else chosen(vars, model)
        if isinstance(adapt_widths, bool | np.bool_):
            self.adapt_widths = bool(adapt_widths)
        else:
            raise TypeError(f"adapt_widths is {adapt_widths!r}; give True or False.")
        if not (is_number(max_drop) and max_drop > 0):
            raise ValueError(f"max_drop is {max_drop!r}; give a positive number, such as 3 units of log-likelihood.")
        self.max_drop, self.blocked = float(max_drop), blocked
        self.rng = get_random_generator(seed(rng, "rng"))
        self.prefix = Prefix(model)
        self.n_start = whole_samples("n_start", n_start, self.prefix.n_samples)
        # Where each value variable lies among the coordinates, and which of these are moved here.
        ends = np.cumsum([np.size(self.prefix.point[v.name]) for v in model.value_vars])
        starts = [0, *ends[:-1]]
        self.layout = {
            v.name: (slice(int(a), int(b)), np.shape(self.prefix.point[v.name]), v.type.dtype)
            for v, a, b in zip(model.value_vars, starts, ends, strict=True)
        }
        own = [v.name for v in self.vars]
        self.own = np.concatenate([np.arange(s.start, s.stop) for s in (self.layout[name][0] for name in own)])
        rvs = [model.values_to_rvs[v].name for v in self.vars]
        self.widths = proposal_widths(widths, {rv: self.layout[name][1] for rv, name in zip(rvs, own, strict=True)})
        self.schedule = schedule
        self._check_schedule()
        self.checkpoint = None if checkpoint is None else place(checkpoint, "checkpoint")
        self.journal: Journal | None = None
        if checkpoint is not None and len(self.vars) < len(model.value_vars):
            raise ValueError(f"checkpoint needs all the variables of the model to be moved by DataAnnealing, not {own} alone.")
        self.current: Evaluation | None = None
        self._begin(0)

    # -- what PyMC calls ----------------------------------------------------------------------------------------------

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain: nothing is kept from the one before."""
        super().setup_chain(rng, tune, draws)
        self.current = None  # known for the data of the chain before
        self._begin(tune)
        self.last_draw, self.journal = tune + draws, None
        if self.checkpoint is not None:
            self.journal = Journal(self.checkpoint, self.rng, self._identity, list(self.stats_dtypes_shapes))
            if self.journal.rows:
                _log.info("DataAnnealing: a chain goes on after %d draws of its checkpoint.", len(self.journal.rows))

    def _begin(self, n_tune: int) -> None:
        self.tune, self.draw, self.n_tune, self.n_data = True, 0, n_tune, self.n_start
        self.accept_rate, self.log_scaling = 0.0, 0.0
        self.centre, self.spread = np.full(len(self.widths), np.nan), self.widths**2

    def step(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """One draw, or one that a checkpoint knows."""
        if self.journal is None:
            return self._draw(point)
        if (known := self.journal.repeat()) is not None:
            q, numbers = known
            statistics = {k: self.stats_dtypes_shapes[k][0](v) for k, v in numbers.items()}
            return {**point, **{v.name: self._value(q, v.name) for v in self.vars}}, [statistics]
        if (state := self.journal.resumed) is not None:
            self._resume(state)
        point, stats = self._draw(point)
        q = np.concatenate([np.ravel(point[name]) for name in self.layout], dtype=float)
        state = {name: getattr(self, name) for name in CHANGING}
        if self.current is not None:
            state |= {f"current_{k}": v for k, v in self.current._asdict().items()}
        self.journal.note(q, stats[0], state, last=self.draw == self.last_draw)
        return point, stats

    def _draw(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Take samples in, propose, accept or reject (Eq. 4)."""
        self.evaluated = 0
        q = np.concatenate([np.ravel(point[name]) for name in self.layout], dtype=float)
        n = self.n_data = self._grow(q)
        current = self._known(q, n)
        proposal = q.copy()
        proposal[self.own] += self._scaled() * self.rng.standard_cauchy(len(self.own))
        new = self._evaluate(proposal, n)
        before, after = current.prior + current.likelihood(n), new.prior + new.likelihood(n)
        log_ratio = after - before if after > -math.inf else -math.inf
        accepted = bool(-self.rng.standard_exponential() < log_ratio)
        if accepted:
            self.current = new
            point = {**point, **{v.name: self._value(proposal, v.name) for v in self.vars}}
        accept = math.exp(min(log_ratio, 0.0))
        self.draw += 1
        self.accept_rate += (accepted - self.accept_rate) / min(self.draw, MEMORY)
        stats = {
            "n_data": n,
            "evaluations": self.evaluated,
            "accepted": accepted,
            "accept": accept,
            "accept_rate": self.accept_rate,
            "scaling": self._scaling(),
            "model_logp": after if accepted else before,
        }
        if self.tune and self.adapt_widths:
            self._adapt((proposal if accepted else q)[self.own], accept)
        return point, [stats]

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Never chosen without being asked for."""
        return Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> Any:
        columns = [
            TextColumn("{task.fields[n_data]}", table_column=Column("Samples", ratio=1)),
            TextColumn("{task.fields[accept_rate]:0.2f}", table_column=Column("Accept Rate", ratio=1)),
        ]
        return columns, {"n_data": [0] * n_chains, "accept_rate": [0.0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions() -> Any:
        return (lambda stats: {key: stats[key] for key in ("n_data", "accept_rate")},)

    # -- likelihood ---------------------------------------------------------------------------------------------------

    def _evaluate(self, q: np.ndarray, n: int) -> Evaluation:
        """Evaluate a point for n samples, and some ahead while their number grows."""
        reach = min(n + max(8, n // 32), self.prefix.n_samples)
        self.evaluated += reach
        return self.prefix.evaluate(q, n, reach)

    def _known(self, q: np.ndarray, n: int, ahead: int = 0) -> Evaluation:
        """Evaluate the current point only if it moved (by another step method), or if what is known of it is used up."""
        if self.current is None or not self.current.serves(q, n, n + ahead, self.prefix.calibrated_by(n)):
            self.current = self._evaluate(q, n)
        return self.current

    def _value(self, q: np.ndarray, name: str) -> np.ndarray:
        where, shape, dtype = self.layout[name]
        result: np.ndarray = q[where].reshape(shape).astype(dtype)
        return result

    @property
    def _identity(self) -> dict[str, Any]:
        """What two runs must share for one to go on where the other ended."""
        schedule = self.schedule if isinstance(self.schedule, str) else "a function"
        settings = {name: getattr(self, name) for name in ("n_start", "n_tune", "adapt_widths", "max_drop", "widths")}
        return {**settings, "schedule": schedule, "variables": list(self.layout), "samples": self.prefix.n_samples}

    def _resume(self, state: dict[str, Any]) -> None:
        """Take up a chain after its last known draw, unless that has another density now."""
        for name in CHANGING:
            setattr(self, name, state[name])
        self.current = known = Evaluation(**{k: state[f"current_{k}"] for k in Evaluation._fields})
        again = self.prefix.evaluate(known.q, known.n)
        was, now = known.prior + known.path[0], again.prior + again.path[0]
        if not np.isclose(was, now, rtol=1e-6, atol=1e-6):
            raise ValueError(
                f"the checkpoint in {str(self.checkpoint)!r} is of another model or record: the log density of its last draw "
                f"was {was:.6g} and is {now:.6g}; give a new folder."
            )

    # -- schedule -----------------------------------------------------------------------------------------------------

    def _grow(self, q: np.ndarray) -> int:
        """Number of samples of this draw."""
        N = self.prefix.n_samples
        if not self.tune or self.draw >= self.n_tune:
            return N
        fraction = self.draw / self.n_tune
        if self.schedule != "adaptive":
            return self._scheduled(fraction)
        n = self.n_data
        if self.draw and n < N:
            known = self._known(q, n, ahead=1)
            path = known.path[n - known.n :]
            with np.errstate(invalid="ignore"):
                drop = path[0] * (1 + np.arange(1, len(path)) / n) - path[1:]
            n += int(np.argmax(np.append(~(drop <= self.max_drop), True)))
        return max(n, self._by_name("geometric", fraction))

    def _scheduled(self, fraction: float) -> int:
        """Number of samples when a fraction of the tuning draws is done; samples once in stay in."""
        if not callable(self.schedule):
            return self._by_name(self.schedule, fraction)
        number = self.schedule(fraction)
        if not (is_number(number) and 1 <= number <= self.prefix.n_samples):
            raise ValueError(
                f"schedule({fraction:.4g}) is {number!r}; return a number of samples from 1 to {self.prefix.n_samples}."
            )
        return int(number)

    def _by_name(self, name: str, fraction: float) -> int:
        first, N = self.n_start, self.prefix.n_samples
        if name == "linear":
            return first + int((N - first) * fraction)
        return min(N, int(first * (N / first) ** fraction + 1e-9))

    def _check_schedule(self) -> None:
        if not callable(self.schedule) and not among(self.schedule, ("linear", "geometric", "adaptive")):
            raise ValueError(
                f"schedule is {self.schedule!r}; give 'linear', 'geometric', 'adaptive', or a function of the fraction of the "
                "tuning draws that returns a number of samples."
            )
        if callable(self.schedule):
            fractions = np.linspace(0.0, 1.0, 100, endpoint=False)
            numbers = [self._scheduled(float(f)) for f in fractions]
            if falls := np.flatnonzero(np.diff(numbers) < 0).tolist():
                i = falls[0]
                raise ValueError(
                    f"schedule({fractions[i + 1]:.4g}) is {numbers[i + 1]} after {numbers[i]} before; samples must not be "
                    "taken out again."
                )

    # -- widths -------------------------------------------------------------------------------------------------------

    def _scaled(self) -> np.ndarray:
        """Widths of this draw's proposal."""
        return self.widths if not self.adapt_widths else math.exp(self.log_scaling) * np.sqrt(self.spread)

    def _scaling(self) -> float:
        return 1.0 if not self.adapt_widths else float(np.exp(np.mean(np.log(self._scaled() / self.widths))))

    def _adapt(self, q: np.ndarray, accept: float) -> None:
        """Follow the spread of about the last third of the draws, and the acceptance (Robbins and Monro)."""
        rate = 3.0 / (self.draw + 3.0)
        self.log_scaling += 3.0 * (self.draw + 1.0) ** -0.6 * (accept - TARGET_ACCEPTANCE)
        if np.isnan(self.centre[0]):
            self.centre = q
        apart = q - self.centre
        self.centre = self.centre + rate * apart
        self.spread = np.maximum(self.spread + rate * ((1 - rate) * apart**2 - self.spread), 1e-4 * self.widths**2)


def chosen(vars: Any, model: pm.Model) -> list[Any]:
    """Value variables of what a user names."""
    try:
        found: list[Any] = get_value_vars_from_user_vars(vars, model)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ValueError(f"vars is {shown(vars)}; give free variables of the model: {model.free_RVs}.") from error
    if not found:
        raise ValueError(f"vars is empty; give free variables of the model: {model.free_RVs}.")
    return found
