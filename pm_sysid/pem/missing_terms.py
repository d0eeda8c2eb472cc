"""Terms that the equations of motion lack: whether the record shows one, and what it costs."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from scipy.stats import norm

from pm_sysid.pem.filters import KalmanFilter, Motion
from pm_sysid.pem.objective import LARGEST, LogLikelihood, Objective
from pm_sysid.pem.one_more import Directions, OneMore
from pm_sysid.symbolic.system import System, expressions

#: Standard errors by which the factor of a term, of many that are looked at, must differ from zero; by which it must move an
#: unknown; and the logarithm of how much more likely it must make the record.
SEEN, MOVED, GAIN = 6.0, 0.5, 10.0
#: The same for a term that the record may show.
PERHAPS, COUNTS, LITTLE = 3.5, 3.0, 6.0
#: The same for one with which the answer would be another one altogether: a dry friction that a damping has taken the work of.
#: So many errors are of one rate of change; of several, those with the same chance of any. One in forty right fits is told of
#: such a term, and has larger errors for that.
SUSPECTED, OTHERWISE, LEAST = 2.6, 6.0, 3.5
#: Where squared errors of sums of what is left are more times as large as those of white noise, these must be more, too.
COLOURED = 2.0
#: A term that makes a record as likely as the best one does, but for this factor's logarithm, is named beside it.
AS_LIKELY = 3.0
#: Share of what is foreseen by which a term must lower the squared errors where it is evaluated, and parts of the way there:
#: unknowns that it moves by many standard errors move them along a curve.
FORESEEN, PARTS = 0.5, (1.0, 0.5, 0.25)
#: Fewest measured values, and most states of systems that are looked at.
FEWEST, MOST_STATES = 40, 4
#: A difference of states and inputs is looked at whose root mean squares differ by less than this factor.
OF_ONE_SIZE = 10.0
#: A sign is a tanh of the quantity over this share of its root mean square.
SHARP = 0.05
#: Half widths of dead zones and limits of saturations that are looked at, over the root mean square of an input.
ZONES = (0.15, 0.3, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0)
#: Limits to one side that are looked at, as of a valve that cannot open further, likewise.
ONE_SIDED = (0.4, 0.8, 1.2, 1.6)
#: Correlation with the input itself from which on a record does not show that it is bent.
STRAIGHT = 0.995
#: Factors of terms are moved by this share of the typical rate of change.
SMALL = 1e-4


class Term(NamedTuple):
    """A term in the rate of change of a state: in words, its function of what moves, and its powers of that.

    The function is of the states and inputs, and of the smallest values of them that have a sign. An input ``bent`` at a value
    has that value, over the root mean square of the input, in its words, keeps between this value times its ``sides``, and has
    a cause, in words.
    """

    state: int
    words: str
    function: Callable[[Sequence[Any], Sequence[Any]], Any]
    powers: dict[int, int]
    bent: float | None = None
    sides: tuple[float, float] = (-1.0, 1.0)
    cause: str = ""

    def named(self, size: np.ndarray, less: str = "") -> str:
        """Its words, with the value where it is bent, and its cause; ``less`` something else."""
        words = self.words
        if self.bent is not None:
            (j,) = self.powers
            words = words.format(f"{self.bent * size[j]:.2g}")
        words = f"({words} - {less})" if less else words
        return f"{words} ({self.cause})" if self.cause else words

    def unit(self, size: np.ndarray) -> float:
        """Its size where states and inputs are as large as ``size``."""
        return float(np.prod([size[j] ** power for j, power in self.powers.items()]))


class Shown(IntEnum):
    """How clearly a record shows a term."""

    SUSPECTED = 0
    PERHAPS = 1
    SURE = 2


class Missing(NamedTuple):
    """A term that the record shows, in words, with its factor; and the unknown that stands for that.

    ``step`` (k,) is the most that the unknowns would move by with any of the terms that it shows as clearly.
    """

    words: str
    seen: OneMore
    shown: Shown
    step: np.ndarray

    @property
    def sure(self) -> bool:
        """Whether the record shows it beyond doubt."""
        return self.shown is Shown.SURE


def missing_term(target: Objective, x: np.ndarray, directions: Directions, walking: int = 0) -> Missing | None:
    """The term that would make the record most likely, of those that it shows; None if it shows none that counts.

    A damping takes the work of a dry friction and a stiffness that of a hardening spring, at the amplitudes of the record: what
    is left is small, and may look white, while they are many standard errors off. The derivative of the innovations by the
    factor of a term, where it is zero, tells what is left of that very term.

    Parameters
    ----------
    target : Objective
    x : ndarray, shape (k,)
        The optimum.
    directions : Directions
        Of the innovations there.
    walking : int
        How many of the last states are parameters that drift.

    Notes
    -----
    The score test (Rao 1948, Mathematical Proceedings of the Cambridge Philosophical Society 44, 50-57) for each term; the best
    one is evaluated where it leads, or on the way there.
    """
    filter = target.filter
    if not isinstance(filter, KalmanFilter) or not directions.known or len(directions.e) < FEWEST:
        return None
    system = filter.system
    own = len(system.states) - walking
    if own > MOST_STATES or system.dynamics is None or system.latents or system.relations:
        return None
    params, x0 = target.layout.place(x)
    m, n = target.measured.shape[1], len(system.states)
    with np.errstate(all="ignore"):
        states = filter.run(params, x0, Motion.none(params.size, x0), "states")[0][:, 2 * m : 2 * m + n]
        known = np.column_stack([states[:, :own], np.concatenate([r.input_matrix for r in filter.records])])
        size, rate = np.sqrt(np.mean(known**2, axis=0)), _typical_rates(states, filter)
    if not np.isfinite(size).all() or not np.isfinite(rate).all():
        return None
    rates = tuple(int(i) for chain in system.kinematic_chains if (i := chain[-1]) < own and rate[i] > 0)
    moving = tuple(np.flatnonzero(size > 0).tolist())
    signed = tuple(np.flatnonzero((known.min(axis=0) < 0) & (known.max(axis=0) > 0)).tolist())
    # A factor moves the innovations by differences, one run each way: as many as memory holds, of a long record the fewer.
    for bent in (True, False):
        extended = _extended(system, own, rates, moving, signed, bent)
        if extended is None:
            return None
        if 2 * len(extended.terms) * target.measured.size * 4 <= LARGEST:
            break
    else:
        return None
    terms, moved = extended.terms, _Moved(target, filter.with_system(extended.system), params, x0, SHARP * size)
    small = SMALL * rate[[term.state for term in terms]] / np.array([term.unit(size) for term in terms])
    up, down = moved.innovations(np.diag(small)), moved.innovations(np.diag(-small))
    by_term = (down - up) / (2 * small[:, None])

    suspected = float(norm.isf(norm.sf(SUSPECTED) / len(rates)))
    found, gains = list[tuple[Candidate, OneMore, Shown]](), np.zeros(len(terms))
    for candidate in [*_each(terms, size), *_differences(terms, size)]:
        if candidate.bent(terms) and not _bends(terms[candidate.rows[0]], known, size):
            continue
        with np.errstate(invalid="ignore"):
            direction = candidate.factors @ by_term[candidate.rows]
        seen = directions.along(direction, suspected) if np.isfinite(direction).all() and direction.any() else None
        if seen is None:
            continue
        if len(candidate.rows) == 1:
            gains[candidate.rows] = seen.gain
        elif seen.gain < gains[candidate.rows].max() + AS_LIKELY:  # two terms say no more than one by itself
            continue
        if (shown := _shown(seen, suspected)) is not None:
            found.append((candidate, seen, shown))
    # An input that is missing altogether is nearly one that is bent at its largest values.
    alone = {own.acts(terms): seen.gain for own, seen, _ in found if len(own.rows) == 1 and not own.bent(terms)}
    found = [f for f in found if not (f[0].bent(terms) and f[1].gain < alone.get(f[0].acts(terms), -np.inf) + AS_LIKELY)]
    found.sort(key=lambda each: (each[2] is Shown.SURE, each[1].gain), reverse=True)
    if not found:
        return None
    chosen, best, shown = found[0]
    factor = np.zeros((1, len(terms)))
    factor[0, chosen.rows] = best.size * chosen.factors
    squares = float(directions.e @ directions.e)
    fewer = squares - float(best.left @ best.left)
    for part in PARTS:
        (there,) = moved.innovations(part * factor, *target.layout.place(x + part * best.step))
        with np.errstate(all="ignore"):  # it may explode there
            if squares - float(there @ there) > FORESEEN * (1 - (1 - part) ** 2) * fewer:
                break
    else:
        return None
    alike = [other for other, seen, _ in found[1:] if seen.gain > best.gain - AS_LIKELY]
    # Of dead zones of one input the best one is named.
    kinds = {each.kind(terms): each.words for each in reversed([chosen, *alike])}
    kinds.pop(chosen.kind(terms))
    also = f" (or one with {' or '.join(reversed(kinds.values()))})" if kinds else ""
    factors, state = f"{best.size:.3g} ± {best.error:.1g}", system.states[terms[chosen.rows[0]].state]
    least = min(shown, Shown.PERHAPS)
    step = np.max([np.abs(seen.step) for _, seen, clearly in found if clearly >= least], axis=0)
    return Missing(f"a term ({factors}) {chosen.words}{also} in the rate of change of {state}", best, shown, step)


def _shown(seen: OneMore, suspected: float) -> Shown | None:
    """How clearly a record shows a term; None where it shows none that counts.

    ``suspected`` are the errors that are enough where the term would change the answer.
    """
    # What a term leaves is white where it is the one that the model lacks.
    shown = abs(seen.size) / max(seen.error * max(1.0, seen.correlated / COLOURED), 1e-300)
    if shown > SEEN and seen.gain > GAIN and seen.moved > MOVED:
        return Shown.SURE
    if shown > PERHAPS and seen.gain > LITTLE and seen.moved > COUNTS:
        return Shown.PERHAPS
    return Shown.SUSPECTED if shown > suspected and seen.gain > LEAST and seen.moved > OTHERWISE else None


def _terms(state: int, names: Sequence[str], moving: Sequence[int], signed: Collection[int], states: int) -> Iterator[Term]:
    """Terms of the rate of change of a state: powers and signs of the states and inputs that move, and products of states.

    Those that are not ``signed`` keep their sign: that is a constant, and their magnitude what they are.
    """
    yield Term(state, "that is constant", lambda z, s: 1.0, {})
    for j in moving:
        name = names[j]
        yield Term(state, name, lambda z, s, j=j: z[j], {j: 1})  # type: ignore[misc]
        yield Term(state, f"{name}^2", lambda z, s, j=j: z[j] ** 2, {j: 2})  # type: ignore[misc]
        yield Term(state, f"{name}^3", lambda z, s, j=j: z[j] ** 3, {j: 3})  # type: ignore[misc]
        if j in signed:
            yield Term(state, f"{name} |{name}|", lambda z, s, j=j: z[j] * abs(z[j]), {j: 2})  # type: ignore[misc]
            yield Term(state, f"sign({name})", lambda z, s, j=j: pt.tanh(z[j] / s[j]), {})  # type: ignore[misc]
        if j >= states:
            # What an actuator does to its input: other gains to both sides, nothing (little, or more) within a dead zone, or no
            # more beyond a limit.
            if j in signed:
                positive = lambda z, s, j=j: pt.maximum(z[j], 0.0)  # noqa: E731
                cause = "as of another gain to one side"
                yield Term(state, f"max({name}, 0)", positive, {j: 1}, 0.0, (0.0, np.inf), cause)  # type: ignore[misc]
            for part in ZONES:
                yield _clipped(state, name, j, part, (-1.0, 1.0))
            for part in ONE_SIDED if j in signed else ():
                yield _clipped(state, name, j, part, (-np.inf, 1.0))
                yield _clipped(state, name, j, part, (-1.0, np.inf))
    for i, j in combinations([j for j in moving if j < states], 2):
        for a, b in ((1, 1), (2, 1), (1, 2)):
            words = " ".join(f"{names[k]}^{power}" if power > 1 else names[k] for k, power in ((i, a), (j, b)))
            yield Term(state, words, lambda z, s, i=i, j=j, a=a, b=b: z[i] ** a * z[j] ** b, {i: a, j: b})  # type: ignore[misc]


def _clipped(state: int, name: str, j: int, part: float, sides: tuple[float, float]) -> Term:
    """An input that keeps between limits to one side or both, at a share of its root mean square."""
    low, high = (side * part / SHARP for side in sides)
    cause = "as of a saturation to one side"
    if low == -np.inf:
        words = f"min({name}, {{0}})"
    elif high == np.inf:
        words = f"max({name}, -{{0}})"
    else:
        words, cause = f"clip({name}, -{{0}}, {{0}})", "as of a dead zone or a saturation"

    def function(z: Sequence[Any], s: Sequence[Any]) -> Any:
        value = z[j] if low == -np.inf else pt.maximum(z[j], low * s[j])
        return value if high == np.inf else pt.minimum(value, high * s[j])

    return Term(state, words, function, {j: 1}, part, sides, cause)


def _bends(term: Term, known: np.ndarray, size: np.ndarray) -> bool:
    """Whether a record of states and inputs (T, n), with root mean squares (n,), shows that an input is bent.

    Bent at its largest values it is the input itself, and one that keeps its sign may be a constant.
    """
    (j,) = term.powers
    limit = (term.bent or 0.0) * size[j]
    low, high = (side if np.isinf(side) else side * limit for side in term.sides)
    clipped = np.clip(known[:, j], low, high)
    return bool(np.ptp(clipped) > 0 and abs(np.corrcoef(clipped, known[:, j])[0, 1]) < STRAIGHT)


class Candidate(NamedTuple):
    """A term in words, or a difference of terms: their places in the list of all, and their factors in it."""

    words: str
    rows: list[int]
    factors: np.ndarray

    def bent(self, terms: Sequence[Term]) -> bool:
        """Whether it is an input that is bent at a value, or what that cuts off the input."""
        return terms[self.rows[0]].bent is not None

    def acts(self, terms: Sequence[Term]) -> tuple[int, tuple[tuple[int, int], ...]]:
        """State whose rate of change it acts on, and its powers."""
        term = terms[self.rows[0]]
        return term.state, tuple(term.powers.items())

    def kind(self, terms: Sequence[Term]) -> str:
        """What those have in common that are bent at other values."""
        return terms[self.rows[0]].words if self.bent(terms) or len(self.rows) == 1 else self.words


def _each(terms: Sequence[Term], size: np.ndarray) -> Iterator[Candidate]:
    """Each term by itself, and what a bent input lacks of the input: where that acts by a gain that is known."""
    inputs = {
        (term.state, *term.powers): k for k, term in enumerate(terms) if [*term.powers.values()] == [1] and term.bent is None
    }
    for k, term in enumerate(terms):
        yield Candidate(term.named(size), [k], np.ones(1))
    for k, term in enumerate(terms):
        if term.bent is not None:
            whole = inputs[term.state, *term.powers]
            yield Candidate(term.named(size, less=terms[whole].words), [k, whole], np.array([1.0, -1.0]))


def _differences(terms: Sequence[Term], size: np.ndarray) -> Iterator[Candidate]:
    """Differences of states and inputs, as of springs between bodies and leaks to the surroundings.

    Only of such as are of one size (n,): a difference of others is the larger one.
    """
    linear = [(k, term) for k, term in enumerate(terms) if list(term.powers.values()) == [1] and term.bent is None]
    for (a, first), (b, second) in combinations(linear, 2):
        (i,), (j,) = first.powers, second.powers
        if first.state == second.state and max(size[i], size[j]) < OF_ONE_SIZE * min(size[i], size[j]):
            yield Candidate(f"({first.words} - {second.words})", [a, b], np.array([1.0, -1.0]))


class _Extended(NamedTuple):
    """A system with terms, whose last parameters are their factors and the smallest values that have a sign."""

    system: System
    terms: list[Term]


@lru_cache(maxsize=16)
def _extended(
    system: System, own: int, rates: tuple[int, ...], moving: tuple[int, ...], signed: tuple[int, ...], bent: bool = True
) -> _Extended | None:
    """The system with terms in some rates of change, of its own states and inputs that move; None if that cannot be built.

    ``signed`` are those that change their sign; ``bent``: with those that are bent at a value of an input.
    """
    names = [*system.states[:own], *system.inputs]
    terms = [term for i in rates for term in _terms(i, names, moving, signed, own) if bent or term.bent is None]
    factor, sharp = "factor", "sharp"
    while {factor, sharp} & set(system.params.shapes):
        factor, sharp = factor + "_", sharp + "_"
    Params = namedtuple("p", tuple(system.params.shapes))  # type: ignore[misc]

    def theirs(p: Any) -> Any:
        """Parameters as the user's functions know them."""
        return Params(*(getattr(p, name) for name in system.params.shapes))

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        assert system.dynamics is not None
        given, shapes = system.dynamics(t, x, u, theirs(p)), system.states.shapes
        values = [given[name] for name in shapes] if isinstance(given, Mapping) else expressions("dynamics", given)
        entries = [entry for value in values for entry in _entries(value)]
        states = [entry for name in shapes for entry in _entries(getattr(x, name))]
        known = states[:own] + [entry for name in system.inputs.shapes for entry in _entries(getattr(u, name))]
        smallest = getattr(p, sharp)
        for k, term in enumerate(terms):
            entries[term.state] += getattr(p, factor)[k] * term.function(known, smallest)
        left = iter(entries)
        return {name: pt.stack([next(left) for _ in range(s[0])]) if s else next(left) for name, s in shapes.items()}

    try:
        extended = System(
            dynamics,
            states=system.states.shapes,
            inputs=system.inputs.shapes,
            params={**system.params.shapes, factor: (len(terms),), sharp: (len(names),)},
            observe=lambda t, x, dx, u, p: system.observe(t, x, dx, u, theirs(p)),
            chains=False,
        )
    except Exception:  # the fit is there, and this would only say more of it: a function may do what is not foreseen here
        return None
    return _Extended(extended, terms) if terms else None


def _entries(value: Any) -> list[Any]:
    """Entries of a scalar, vector or matrix, one after the other."""
    array = pt.as_tensor(value)
    return [array[i] for i in np.ndindex(*map(int, array.type.shape))] if array.type.ndim else [value]


def _typical_rates(states: np.ndarray, filter: KalmanFilter) -> np.ndarray:
    """Root mean square (n,) of the rates of change of the states, from one sample to the next."""
    at, found = 0, list[np.ndarray]()
    for record in filter.records:
        if len(record) > 1:
            found.append(np.diff(states[at : at + len(record)], axis=0) / record.dt[: len(record) - 1, None])
        at += len(record)
    return np.asarray(np.sqrt(np.mean(np.concatenate(found) ** 2, axis=0))) if found else np.zeros(states.shape[1])


class _Moved:
    """Innovations of a filter whose system has more terms, over the standard deviations that they have without."""

    def __init__(self, target: Objective, filter: KalmanFilter, params: np.ndarray, x0: np.ndarray, sharp: np.ndarray) -> None:
        self.target, self.filter, self.params, self.x0 = target, filter, params, x0
        self.sharp = np.where(sharp > 0, sharp, 1.0)
        self.std: Any = 1.0
        if isinstance(target, LogLikelihood):
            m = target.measured.shape[1]
            values, _ = target.filter.run(params, x0, target.layout.motion, target.want)
            self.std = np.sqrt(values[:, m : 2 * m][target.measured])

    def innovations(self, factors: np.ndarray, params: np.ndarray | None = None, x0: np.ndarray | None = None) -> np.ndarray:
        """(S, N) at factors (S, K) of the terms, and other parameters and starts if given."""
        params, x0 = self.params if params is None else params, self.x0 if x0 is None else x0
        own, m = len(self.target.filter.system.params), self.target.measured.shape[1]
        sets = np.array([np.concatenate([params[:own], f, self.sharp, params[own:]]) for f in factors])
        starts = np.broadcast_to(x0, (len(factors), *x0.shape))
        with np.errstate(all="ignore"):
            values, _ = self.filter.run_many(sets, starts, Motion.none(sets.shape[1], x0), self.target.want)
        return np.asarray(values[..., :m][:, self.target.measured] / self.std)
