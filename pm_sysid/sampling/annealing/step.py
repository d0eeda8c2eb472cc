"""Data Annealing: a Metropolis chain whose likelihood takes the samples of a record in while it tunes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm

from pm_sysid.arguments import among, is_number, place, seed, shown
from pm_sysid.compat import (
    BlockedStep,
    Competence,
    SamplerWarning,
    StepMethodState,
    WarningType,
    dataclass_state,
    get_random_generator,
    get_value_vars_from_user_vars,
)
from pm_sysid.likelihood.circular import in_other_turns, same_turn
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.prefix_target import Evaluation, Prefix
from pm_sysid.progress import text_columns
from pm_sysid.sampling.annealing.adaptation import EXPLORING, Shape, adapted, begun, exploring, multivariate_t
from pm_sysid.sampling.annealing.draw_log import DrawLog
from pm_sysid.sampling.annealing.independent import Independent, nowhere
from pm_sysid.sampling.annealing.missed import missed
from pm_sysid.sampling.annealing.population import population
from pm_sysid.sampling.annealing.settings import WIDTH, annealed_share, proposal_widths, whole_samples
from pm_sysid.sampling.convergence import mixing
from pm_sysid.sampling.smc.turns import turns_about

_log = logging.getLogger("pm_sysid")

type Schedule = Literal["linear", "geometric", "adaptive"] | Callable[[float], float]

#: Samples at the first draw, unless the record has fewer.
FIRST = 2
#: Draws over which the acceptance that the progress bar shows is averaged.
MEMORY = 100
#: Part of the adaptation after which proposals from all over the posterior are looked for.
LOOK = 0.8
#: Most draws of the chain that they follow.
RECENT = 2000
#: Columns of the progress bar: title, format, first value.
COLUMNS = {"n_data": ("Samples", "{}", 0), "accept_rate": ("Accept Rate", "{:0.2f}", 0.0)}


class Place(NamedTuple):
    """Where a value variable lies among the coordinates, its shape and its type."""

    where: slice
    shape: tuple[int, ...]
    dtype: str


class ChainState(NamedTuple):
    """What changes along a chain, besides its point, its generator and the shape of its proposals."""

    draw: int
    n_data: int
    accept_rate: float


@dataclass_state
class DataAnnealingState(StepMethodState):
    """What changes along a chain, and the settings that must be the same to go on with it."""

    tune: bool
    n_tune: int
    chain: ChainState
    shape: Shape
    independent: Independent
    centre: np.ndarray
    n_start: int = field(metadata={"frozen": True})
    adapt: bool = field(metadata={"frozen": True})
    annealed: float = field(metadata={"frozen": True})
    widths: np.ndarray = field(metadata={"frozen": True})


class DataAnnealing(BlockedStep):
    """Data Annealing (Green 2015), as a step method for ``pm.sample``.

    While PyMC tunes, the likelihood has only the first samples of the record, and more with each draw, so that at first the
    prior dominates, the chain moves freely past what would be local traps of the full posterior, and a draw costs little. The
    proposals are those of the paper, a one-dimensional Cauchy distribution for each parameter: a local search with occasional
    long jumps. Once all samples are in, the rest of the tuning adapts other proposals to the shape of the posterior. From the
    first draw after tuning on it is an ordinary Metropolis chain with everything fixed: all samples, the same proposals.

    Parameters
    ----------
    vars : list of variables, optional
        What to move; other variables are left to other step methods. Default: all free variables of the model.
    widths : positive number, or mapping of variable name to number or array, default 0.005
        Width (half of the interquartile range) of the Cauchy proposals in unconstrained space: of logarithms for positive
        variables. A variable that a mapping leaves out has 0.005. With ``adapt`` they are multiplied by a random factor
        between 0.1 and 100 for each proposal.
    schedule : {"linear", "geometric", "adaptive"} or callable
        Number of samples in the likelihood during annealing. ``"linear"`` (the paper's): the same number of new samples every
        draw. ``"geometric"``: the same percentage. ``"adaptive"``: as many as explain themselves: new samples are added
        until the current parameters have lost ``max_drop`` of log-likelihood against what they have on average for samples
        already in, but at least as many as by ``"geometric"``. A callable gets the fraction of the annealing done, from 0
        (first draw) to just below 1, and returns the number of samples, which is rounded down and must not decrease.
    n_start : int, optional
        Number of samples at the first draw. Default: 2; 1 where the record has no more.
    model : pm.Model, optional
        Default: the model on the context stack.
    adapt : bool, default True
        Whether to adapt proposals in the rest of the tuning. False: the paper's plain form, whose proposals have the given
        widths throughout, and whose annealing takes all of the tuning.
    annealed : float, optional
        Share of the tuning draws in which samples are taken in. Default: 0.5; 1 if nothing is adapted.
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

    Warns
    -----
    At the end of a chain, by PyMC's log: if that chain alone shows that it has not mixed (its halves disagree with an R-hat
    above 1.05, or it has fewer than 100 effective draws of a parameter), and if it has missed a part of the posterior by
    weighted draws from all over it, whatever R-hat says: another mode, or a long tail. A chain that cannot tell says so, for
    information. Chains that are each in a place of their own are seen by comparing them, too:
    PyMC does so after sampling (``compute_convergence_checks``), and so do :func:`compare_models` and :func:`report`, which
    also repeat what chains have said to have missed.

    Notes
    -----
    The paper's own run is ``pm.sample(draws=48_000, tune=2000, step=sid.DataAnnealing(adapt=False))``, on logarithms of the
    parameters. Keep the draws of the annealing phase with ``discard_tuned_samples=False``, and see them with
    :func:`plot_annealing`.

    Adaptation is robust adaptive Metropolis: a matrix that stretches multivariate t proposals (five degrees of freedom) is
    changed after each draw until steps in every direction are accepted with a probability of 0.234; four times it begins anew
    from the covariance of the draws. Such proposals follow ridges, which independent ones cannot. The matrix learns from
    draws with all samples only: learning while samples are added traps chains, as the posterior then narrows faster than the
    proposals follow. Some hundred draws for each parameter are needed. Three in ten proposals remain Cauchy steps, by which a
    chain that was still beside the posterior finds it.

    Steps seldom lead from one mode to another, or into a far tail, and all chains may lack the same part. After four fifths
    of the adaptation each chain therefore looks over the whole posterior: draws of the prior take the samples in as a
    population, by weights, and mixtures of t distributions are fitted to them. A part of the proposals (a fifth, and more if
    they fit well) then comes from such a mixture, wherever the chain is; to find it costs up to a quarter of what all draws
    cost, and of short runs up to what 2000 draws cost, or all of theirs. A search for modes that the population has lost,
    from draws of the prior, costs up to about 0.4 times as much again, and twice that where it finds some. The proposals of
    it after tuning are also weighted draws, with which the chain is compared at its end. Runs of fewer than 500 draws with
    their tuning, priors that cannot be drawn from, and chains beside which another step method moves a variable have neither.
    With ``adapt=False`` the chain is the paper's, and the population runs at its end for the comparison alone. Of many
    unknowns a population may lose a mode before all samples are in, and the search not find it. Where its draws were too few
    to follow the posterior on the way, the chain cannot tell what it has missed, and only other chains can.

    The density of an angle (``pm.VonMises``) repeats itself with every turn. The chain has angles in one turn only, and is
    judged by turns that begin where its draws are fewest.

    Statistics of a draw: ``n_data``, samples in the likelihood; ``evaluations``, samples that the likelihood was computed
    for (its sum is the cost of the run); ``accepted``; ``accept``, the acceptance probability; ``accept_rate``, its average
    over about the last 100 draws; ``scaling``, by which adaptation has multiplied the widths (geometric mean);
    ``missed``, of the last draw of a chain, 1 if weighted draws deny the chain (as the warning says), 0 if they agree with it,
    and not a number if they are too uneven, or too few, to tell; ``model_logp`` (``lp`` in the result), the log-density of the
    draw given ``n_data`` samples.

    The log-likelihood of the current parameters under the grown prefix is known some samples ahead, and evaluated anew when
    these are used up. While samples are added, a diffusion calibrated by ``"mle"`` comes from a part of the prefix (at least
    half of it, or 256 samples); once all are in, from all, so that the stationary distribution is the model's posterior.

    Source: Green (2015), Mechanical Systems and Signal Processing 52-53, 133-146; Eqs. 21-22 and section 4. The adaptive
    schedule is this package's (section 5 of the paper names the wish). Widths and schedule have to be chosen there, too.
    Adaptation: Vihola (2012), Statistics and Computing 22, 997-1008.

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
    (array([[2, 4]]), array([4, 4, 4]))
    """

    name = "data_annealing"
    default_blocked = True
    stats_dtypes_shapes: dict[str, tuple[type, list[int] | None]] = {  # noqa: RUF012
        "n_data": (int, []),
        "evaluations": (int, []),
        "accepted": (np.float64, []),  # as of PyMC's Metropolis, beside which it may stand
        "accept": (np.float64, []),
        "accept_rate": (np.float64, []),
        "scaling": (np.float64, []),
        "missed": (np.float64, []),
        "model_logp": (np.float64, []),
        # PyMC logs it, from whatever process, and leaves it out of the result; as of NUTS, beside which it may stand.
        "warning": (SamplerWarning, None),
    }
    _state_class = DataAnnealingState

    def __init__(
        self,
        vars: Any = None,
        *,
        widths: float | Mapping[str, Any] = WIDTH,
        schedule: Schedule = "linear",
        n_start: int | None = None,
        model: pm.Model | None = None,
        adapt: bool = True,
        annealed: float | None = None,
        max_drop: float = 3.0,
        checkpoint: str | os.PathLike[str] | None = None,
        rng: Any = None,
        blocked: bool = True,
        **kwargs: Any,
    ) -> None:
        unknown = [k for k in kwargs if k not in ("initial_point", "compile_kwargs")]  # PyMC may pass these
        if unknown:
            raise TypeError(
                f"DataAnnealing has no argument {unknown[0]!r}; it has widths, schedule, n_start, adapt, annealed, ..."
            )
        model = model_of(model)
        self.vars = model.value_vars if vars is None else chosen(vars, model)
        self.adapt, self.annealed = annealed_share(adapt, annealed)
        if not (is_number(max_drop) and max_drop > 0):
            raise ValueError(f"max_drop is {max_drop!r}; give a positive number, such as 3 units of log-likelihood.")
        self.max_drop, self.blocked = float(max_drop), blocked
        self.rng = get_random_generator(seed(rng, "rng"))
        self.prefix = Prefix(model)
        known = self.prefix.n_samples
        self.n_start = min(FIRST, known) if n_start is None else whole_samples("n_start", n_start, known)
        # Where each value variable lies among the coordinates, and which of these are moved here.
        ends = np.cumsum([np.size(self.prefix.point[v.name]) for v in model.value_vars])
        starts = [0, *ends[:-1]]
        self.layout = {
            v.name: Place(slice(int(a), int(b)), np.shape(self.prefix.point[v.name]), v.type.dtype)
            for v, a, b in zip(model.value_vars, starts, ends, strict=True)
        }
        own = [v.name for v in self.vars]
        self.own = np.concatenate([np.arange(s.start, s.stop) for s in (self.layout[name].where for name in own)])
        self.angles = np.zeros(self.prefix.coordinates.size, dtype=bool)
        self.angles[self.own] = self.prefix.coordinates.circular[self.own]
        rvs = [model.values_to_rvs[v].name for v in self.vars]
        self.widths = proposal_widths(widths, {rv: self.layout[name].shape for rv, name in zip(rvs, own, strict=True)})
        self.schedule = schedule
        self._check_schedule()
        self.checkpoint = None if checkpoint is None else place(checkpoint, "checkpoint")
        self.log: DrawLog | None = None
        self.last_draw = 0
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
        self.last_draw, self.log = tune + draws, None
        if self.checkpoint is not None:
            numbers = [name for name in self.stats_dtypes_shapes if name != "warning"]
            self.log = DrawLog(self.checkpoint, self.rng, self._identity, numbers)
            if self.log.draws:
                _log.info("DataAnnealing: a chain goes on after %d draws of its checkpoint.", len(self.log.draws))
            if len(self.log.draws) >= self.last_draw:
                self.log.file.release()  # all is known: nothing will be written

    def _begin(self, n_tune: int) -> None:
        self.tune, self.n_tune, self.drawn = True, n_tune, 0
        self.chain, self.shape = ChainState(0, self.n_start, 0.0), begun(self.widths)
        self.independent, self.centre = nowhere(len(self.own)), np.zeros(len(self.angles))
        self.kept: list[np.ndarray] = []  # draws after tuning, to judge the chain by
        self.recent: list[np.ndarray] = []  # draws of the adaptation
        self.proposed: list[np.ndarray] = []  # independently, after tuning
        self.log_weights: list[float] = []  # log posterior there, less the log density of the proposals

    def step(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """One draw, or one that a checkpoint knows."""
        point, statistics = self._draw(point) if self.log is None else self._logged_draw(point, self.log)
        self.drawn += 1
        if self.drawn > self.n_tune:
            self.kept.append(self._coordinates(point)[self.own])
        elif self.drawn > self._annealing:
            self.recent.append(self._coordinates(point)[self.own])
        warning = None
        if self.drawn == self.last_draw:
            if self.log is not None and (saved := self.log.resumed) is not None:  # all draws were known
                self._resume({**saved.arrays, **saved.numbers})
            warning, statistics["missed"], evaluated = self._said()
            statistics["evaluations"] += evaluated
        return point, [{**statistics, "warning": warning}]

    def _logged_draw(self, point: dict[str, np.ndarray], log: DrawLog) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """One draw that the checkpoint knows, or will know."""
        if (known := log.repeat()) is not None:
            q, numbers = known
            statistics = {k: self.stats_dtypes_shapes[k][0](v) for k, v in numbers.items()}
            return {**point, **{v.name: self._value(q, v.name) for v in self.vars}}, statistics
        if (saved := log.resumed) is not None:
            self._resume({**saved.arrays, **saved.numbers})
        point, stats = self._draw(point)
        state = {**self.chain._asdict(), **{f"shape_{k}": v for k, v in self.shape._asdict().items()}}
        state |= {f"independent_{k}": v for k, v in self.independent._asdict().items()}
        state |= {"proposed": np.array(self.proposed), "log_weights": np.array(self.log_weights), "centre": self.centre}
        if self.current is not None:
            state |= {f"current_{k}": v for k, v in self.current._asdict().items()}
        log.note(self._coordinates(point), stats, state, last=self.chain.draw == self.last_draw)
        return point, stats

    def _said(self) -> tuple[SamplerWarning | None, float, int]:
        """What is said against the chain at its end, None if nothing; and whether it has missed a part, NaN if that is unknown.

        The last number is that of the samples evaluated for it.
        """
        if not self.kept:
            return None, math.nan, 0
        labels, kept = [self.prefix.labels[i] for i in self.own], np.array(self.kept)
        centre = self._turns(kept)
        kept = same_turn(kept, centre, self.angles[self.own])
        reasons = []
        if bad := mixing(kept[None], labels).bad:
            reasons.append(
                f"a chain has not mixed ({bad} in {len(kept)} draws, {100 * self.chain.accept_rate:.0f} % accepted lately): "
                "its draws are no posterior yet"
            )
        x, log_weights, followed, evaluated = self._all_over(kept)
        found = missed(kept, same_turn(x, centre, self.angles[self.own]), log_weights, labels)
        if found:
            reasons.append(f"a chain may have missed a part of the posterior, whatever R-hat says: {found}")
        unknown = not found and (found is None or not followed or bool(bad))
        known = math.nan if unknown else float(bool(found))
        level = "warn" if reasons else "info"
        if unknown and len(self.own) == len(self.prefix.labels):
            reasons.append("too few draws to tell whether other modes were missed")
        if not reasons:
            return None, known, evaluated
        remedy = "draw more, tune longer" if self.adapt else "draw more, or let it adapt (adapt=True)"
        said = f"DataAnnealing: {'; '.join(reasons)}. Compare chains; {remedy}, or use sample_ibis."
        return SamplerWarning(WarningType.CONVERGENCE, said, level), known, evaluated

    def _all_over(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool, int]:
        """Draws from all over the posterior and their log weights: those that the chain has proposed, or fresh ones.

        Then whether the population that they come from has followed the posterior all the way, and the number of samples
        evaluated for fresh ones.
        """
        if self.adapt or len(self.own) < len(self.prefix.labels):
            return np.array(self.proposed), np.array(self.log_weights), self.independent.followed, 0
        self.centre = self._turns(kept)
        found = population(self.prefix, self.last_draw, kept[-RECENT:], self.rng)
        if found is None:
            return np.empty((0, len(self.own))), np.empty(0), False, 0
        return found.x, found.log_weights, found.followed, found.evaluated

    def _look(self) -> None:
        """Look for proposals from all over the posterior, when the chain has adapted to where it is."""
        if len(self.own) < len(self.prefix.labels):
            return
        recent = np.array(self.recent[len(self.recent) // 2 :])[-RECENT:].reshape(-1, len(self.own))
        self.centre = self._turns(recent)
        found = population(self.prefix, self.last_draw, same_turn(recent, self.centre, self.angles), self.rng)
        if found is not None:
            self.evaluated += found.evaluated
            self.independent = Independent.of(found.proposal, found.estimate.efficiency, found.followed)

    def _draw(self, point: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Take samples in, propose, accept or reject (Eq. 4)."""
        self.evaluated, q = 0, self._folded(self._coordinates(point))
        n = self._grow(q)
        learning = self.adapt and self.tune and self.chain.draw < self.n_tune and n >= self.prefix.n_samples
        if learning and self.chain.draw == self._annealing + int(LOOK * (self.n_tune - self._annealing)):
            self._look()
            q = self._folded(q)
        current = self._known(q, n)
        wide = self.independent
        independent = wide.exists and self.rng.random() < wide.share
        if independent:
            move, shaped, proposal = None, False, wide.draw(self.rng)
            from_there, from_here = wide.logpdf(q), wide.logpdf(proposal)
        else:
            move, shaped = self._move(learning or self.shape.draws > 0)
            proposal = q.copy()
            proposal[self.own] += self.shape.root @ move if shaped else self.widths * move
            proposal = self._folded(proposal)
            from_there = from_here = 0.0
        new = self._evaluate(proposal, n)
        before, after = current.prior + current.likelihood(n), new.prior + new.likelihood(n)
        if independent and in_other_turns(proposal[None], self.centre, self.angles)[0]:
            after = -math.inf
        log_ratio = after - before + from_there - from_here if after > -math.inf else -math.inf
        if independent and not self.tune:
            self.proposed.append(proposal)
            self.log_weights.append(after - from_here if after > -math.inf else -math.inf)
        accepted = bool(-self.rng.standard_exponential() < log_ratio)
        if accepted:
            self.current = new
            point = {**point, **{v.name: self._value(proposal, v.name) for v in self.vars}}
        accept = math.exp(min(log_ratio, 0.0))
        draw, rate = self.chain.draw + 1, self.chain.accept_rate
        self.chain = self.chain._replace(draw=draw, n_data=n, accept_rate=rate + (accepted - rate) / min(draw, MEMORY))
        stats = {
            "n_data": n,
            "evaluations": self.evaluated,
            "accepted": accepted,
            "accept": accept,
            "accept_rate": self.chain.accept_rate,
            "scaling": float(np.exp(np.mean(np.log(np.diag(self.shape.root) / self.widths)))),
            "missed": math.nan,
            "model_logp": after if accepted else before,
        }
        if learning:
            total, now = self.n_tune - self._annealing, (proposal if accepted else q)[self.own]
            now = same_turn(now, self.shape.mean, self.angles[self.own])
            self.shape = adapted(self.shape, move if shaped else None, accept, now, total)
        return point, stats

    def _move(self, shapes: bool) -> tuple[np.ndarray, bool]:
        """Step before it is scaled, and whether that is by the shape rather than by the widths; symmetric in any case."""
        rng, size = self.rng, len(self.own)
        if not self.adapt:
            return rng.standard_cauchy(size), False
        if shapes and rng.random() >= EXPLORING:
            return multivariate_t(rng, size), True
        return exploring(rng, size), False

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Never chosen without being asked for."""
        return Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> Any:
        return text_columns(COLUMNS, n_chains)

    @staticmethod
    def _make_progressbar_update_functions() -> Any:
        return (lambda stats: {key: stats[key] for key in COLUMNS},)

    # -- likelihood ---------------------------------------------------------------------------------------------------

    def _evaluate(self, q: np.ndarray, n: int) -> Evaluation:
        """Evaluate a point for n samples, and some ahead while their number grows."""
        reach = min(n + max(8, n // 32), self.prefix.n_samples)
        self.evaluated += reach
        return self.prefix.evaluate(q, n, reach)

    def _known(self, q: np.ndarray, n: int, ahead: int = 0) -> Evaluation:
        """Evaluate the current point only if it moved (by another step method), or if what is known of it is used up."""
        if self.current is None or not self.current.serves(q, n, n + ahead, self.prefix.diffusion_samples(n)):
            self.current = self._evaluate(q, n)
        return self.current

    def _value(self, q: np.ndarray, name: str) -> np.ndarray:
        at = self.layout[name]
        result: np.ndarray = q[at.where].reshape(at.shape).astype(at.dtype)
        return result

    @property
    def centre(self) -> np.ndarray:
        """Middle (d,) of the one turn in which the chain has the angles that it moves: their density repeats with each turn."""
        return self.prefix.coordinates.centre

    @centre.setter
    def centre(self, centre: np.ndarray) -> None:
        self.prefix.coordinates.centre = centre

    def _folded(self, q: np.ndarray) -> np.ndarray:
        """Bring the angles that are moved here into their turn."""
        return same_turn(q, self.centre, self.angles)

    def _turns(self, draws: np.ndarray) -> np.ndarray:
        """Middles of turns that begin where draws (N, d) of the coordinates that are moved here are fewest."""
        return turns_about(draws, np.ones(len(draws)), self.angles[self.own])

    def _coordinates(self, point: Mapping[str, np.ndarray]) -> np.ndarray:
        """Coordinates of a point in the order of the value variables."""
        return np.concatenate([np.ravel(point[name]) for name in self.layout], dtype=float)

    @property
    def _identity(self) -> dict[str, Any]:
        """What two runs must share for one to go on where the other ended."""
        return {
            "n_start": self.n_start,
            "n_tune": self.n_tune,
            "adapt": self.adapt,
            "annealed": self.annealed,
            "max_drop": self.max_drop,
            "widths": self.widths,
            "schedule": self.schedule if isinstance(self.schedule, str) else "a function",
            "variables": list(self.layout),
            "samples": self.prefix.n_samples,
        }

    def _resume(self, state: dict[str, Any]) -> None:
        """Take up a chain after its last known draw, unless that has another density now."""
        self.chain = ChainState(**{name: state[name] for name in ChainState._fields})
        self.shape = Shape(**{name: state[f"shape_{name}"] for name in Shape._fields})
        if "proposed" in state:  # not in checkpoints of versions without such proposals
            fields = {name: f"independent_{name}" for name in Independent._fields}
            self.independent = Independent(**{name: state[key] for name, key in fields.items() if key in state})
            self.proposed, self.log_weights = list(state["proposed"]), list(state["log_weights"])
        self.centre = state.get("centre", self.centre)  # not in checkpoints of versions without turns
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
        draw, n = self.chain.draw, self.chain.n_data
        fraction = draw / self._annealing
        if not self.tune or fraction >= 1:
            return N
        if self.schedule != "adaptive":
            return self._scheduled(fraction)
        if draw and n < N:
            known = self._known(q, n, ahead=1)
            path = known.path[n - known.n :]
            with np.errstate(invalid="ignore"):
                drop = path[0] * (1 + np.arange(1, len(path)) / n) - path[1:]
            n += int(np.argmax(np.append(~(drop <= self.max_drop), True)))
        return max(n, self._by_name("geometric", fraction))

    @property
    def _annealing(self) -> int:
        """Number of tuning draws in which samples are taken in."""
        return max(1, round(self.annealed * self.n_tune))

    def _scheduled(self, fraction: float) -> int:
        """Number of samples when a fraction of the annealing is done; samples once in stay in."""
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
                "annealing that returns a number of samples."
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


def chosen(vars: Any, model: pm.Model) -> list[Any]:
    """Value variables of what a user names, in the order of the model."""
    try:
        found: list[Any] = get_value_vars_from_user_vars(vars, model)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ValueError(f"vars is {shown(vars)}; give free variables of the model: {model.free_RVs}.") from error
    if not found:
        raise ValueError(f"vars is empty; give free variables of the model: {model.free_RVs}.")
    return [v for v in model.value_vars if v in found]
