"""Terms that the equations of motion lack: whether the record shows one, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pm_sysid.pem.filters import KalmanFilter, Motion
from pm_sysid.pem.objective import LARGEST, LogLikelihood, Objective
from pm_sysid.pem.one_more import Directions, OneMore
from pm_sysid.symbolic.system import System, expressions

#: Standard errors by which the factor of a term, of many that are looked at, must differ from zero; by which it must move an
#: unknown; and the logarithm of how much more likely it must make the record.
SEEN, MOVED, GAIN = 6.0, 0.5, 10.0
#: The same for a term that the record may show.
PERHAPS, COUNTS, LITTLE = 4.0, 3.0, 6.0
#: Where squared errors of sums of what is left are more times as large as those of white noise, these must be more, too.
COLOURED = 2.0
#: A term that makes a record as likely as the best one does, but for this factor's logarithm, is named beside it.
AS_LIKELY = 3.0
#: Share of the likelihood foreseen that a term must reach where it is evaluated.
FORESEEN = 0.5
#: Fewest measured values, and most states of systems that are looked at.
FEWEST, MOST_STATES = 40, 4
#: A sign is a tanh of the quantity over this share of its root mean square.
SHARP = 0.05
#: Factors of terms are moved by this share of the typical rate of change.
SMALL = 1e-4


class Term(NamedTuple):
    """A term in the rate of change of a state: in words, its function of states and inputs over their sizes, and its unit."""

    state: int
    words: str
    function: Callable[[Sequence[Any]], Any]
    unit: float


class Missing(NamedTuple):
    """A term that the record shows, in words, with its factor; and the unknown that stands for that."""

    words: str
    seen: OneMore
    sure: bool


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
    one is evaluated where it leads.
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
    names = [*system.states[:own], *system.inputs]
    tops = [i for chain in system.kinematic_chains if (i := chain[-1]) < own and rate[i] > 0]
    terms = [term for i in tops for term in _terms(i, names, size, own)]
    # A state moves the innovations by differences, one run each way: as many as memory holds.
    if not terms or 2 * len(terms) * target.measured.size * 4 > LARGEST:
        return None
    moved = _Moved(target, filter.with_system(_with_terms(system, terms, size)), params, x0)
    small = SMALL * rate[[term.state for term in terms]]
    up, down = moved.innovations(np.diag(small)), moved.innovations(np.diag(-small))
    found = list[tuple[int, OneMore, bool]]()
    for k, direction in enumerate((down - up) / (2 * small[:, None])):
        seen = directions.along(direction) if np.isfinite(direction).all() and direction.any() else None
        if seen is not None and (sure := _shown(seen)) is not None:
            found.append((k, seen, sure))
    found.sort(key=lambda each: (each[2], each[1].gain), reverse=True)
    if not found:
        return None
    k, best, sure = found[0]
    factor = np.zeros((1, len(terms)))
    factor[0, k] = best.size
    (there,) = moved.innovations(factor, *target.layout.place(x + best.step))
    gain = 0.5 * len(there) * float(np.log(max(directions.e @ directions.e, 1e-300) / max(there @ there, 1e-300)))
    if not gain > FORESEEN * best.gain:
        return None
    alike = [terms[j].words for j, seen, _ in found[1:] if seen.gain > best.gain - AS_LIKELY]
    term, also = terms[k], f" (or one with {' or '.join(alike)})" if alike else ""
    factors = f"{best.size * term.unit:.3g} ± {best.error * term.unit:.1g}"
    return Missing(f"a term ({factors}) {term.words}{also} in the rate of change of {system.states[term.state]}", best, sure)


def _shown(seen: OneMore) -> bool | None:
    """Whether a record shows a term beyond doubt; None where it shows none that counts."""
    # What a term leaves is white where it is the one that the model lacks.
    shown = abs(seen.size) / max(seen.error * max(1.0, seen.correlated / COLOURED), 1e-300)
    if shown > SEEN and seen.gain > GAIN and seen.moved > MOVED:
        return True
    return False if shown > PERHAPS and seen.gain > LITTLE and seen.moved > COUNTS else None


def _terms(state: int, names: Sequence[str], size: np.ndarray, states: int) -> Iterator[Term]:
    """Terms of the rate of change of a state: powers and signs of the states and inputs that move, and products of states."""
    yield Term(state, "that is constant", lambda z: 1.0, 1.0)
    moving = [j for j in range(len(names)) if size[j] > 0]
    for j in moving:
        name, s = names[j], size[j]
        yield Term(state, name, lambda z, j=j: z[j], 1 / s)  # type: ignore[misc]
        yield Term(state, f"{name}^2", lambda z, j=j: z[j] ** 2, 1 / s**2)  # type: ignore[misc]
        yield Term(state, f"{name} |{name}|", lambda z, j=j: z[j] * abs(z[j]), 1 / s**2)  # type: ignore[misc]
        yield Term(state, f"{name}^3", lambda z, j=j: z[j] ** 3, 1 / s**3)  # type: ignore[misc]
        if j < states:
            yield Term(state, f"sign({name})", lambda z, j=j: pt.tanh(z[j] / SHARP), 1.0)  # type: ignore[misc]
    for i, j in combinations([j for j in moving if j < states], 2):
        for a, b in ((1, 1), (2, 1), (1, 2)):
            powers = [f"{names[k]}^{power}" if power > 1 else names[k] for k, power in ((i, a), (j, b))]
            unit = 1 / (size[i] ** a * size[j] ** b)
            yield Term(state, " ".join(powers), lambda z, i=i, j=j, a=a, b=b: z[i] ** a * z[j] ** b, unit)  # type: ignore[misc]


def _with_terms(system: System, terms: Sequence[Term], size: np.ndarray) -> System:
    """The system with terms, whose factors are its last parameters; states and inputs are divided by their ``size``."""
    name = "factor"
    while name in system.params.shapes:
        name += "_"

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        assert system.dynamics is not None
        given = system.dynamics(t, x, u, p)
        names = system.states.shapes
        named = given if isinstance(given, Mapping) else dict(zip(names, expressions("dynamics", given), strict=False))
        entries = [e for key, shape in names.items() for e in _entries(named[key], shape)]
        known = [e for key, shape in names.items() for e in _entries(getattr(x, key), shape)]
        known += [e for key, shape in system.inputs.shapes.items() for e in _entries(getattr(u, key), shape)]
        of = [known[j] / size[j] if size[j] > 0 else known[j] for j in range(len(size))]
        for k, term in enumerate(terms):
            entries[term.state] += getattr(p, name)[k] * term.function(of)
        left = iter(entries)
        return {key: pt.stack([next(left) for _ in range(shape[0])]) if shape else next(left) for key, shape in names.items()}

    return System(
        dynamics,
        states=system.states.shapes,
        inputs=system.inputs.shapes,
        params={**system.params.shapes, name: (len(terms),)},
        observe=system.observe,
        chains=False,
    )


def _entries(value: Any, shape: tuple[int, ...]) -> list[Any]:
    """Entries of a scalar or vector, one after the other."""
    return [value[i] for i in range(shape[0])] if shape else [value]


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

    def __init__(self, target: Objective, filter: KalmanFilter, params: np.ndarray, x0: np.ndarray) -> None:
        self.target, self.filter, self.params, self.x0 = target, filter, params, x0
        self.more = len(filter.system.params) - len(target.filter.system.params)
        self.std: Any = 1.0
        if isinstance(target, LogLikelihood):
            m = target.measured.shape[1]
            values, _ = target.filter.run(params, x0, target.layout.motion, target.want)
            self.std = np.sqrt(values[:, m : 2 * m][target.measured])

    def innovations(self, factors: np.ndarray, params: np.ndarray | None = None, x0: np.ndarray | None = None) -> np.ndarray:
        """(S, N) at factors (S, K) of the terms, and other parameters and starts if given."""
        params, x0 = self.params if params is None else params, self.x0 if x0 is None else x0
        own, m = len(self.target.filter.system.params), self.target.measured.shape[1]
        sets = np.array([np.concatenate([params[:own], f, params[own:]]) for f in factors])
        starts = np.broadcast_to(x0, (len(factors), *x0.shape))
        with np.errstate(all="ignore"):
            values, _ = self.filter.run_many(sets, starts, Motion.none(sets.shape[1], x0), self.target.want)
        return np.asarray(values[..., :m][:, self.target.measured] / self.std)
