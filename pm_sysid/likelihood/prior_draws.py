"""Draws from the prior of a model; potentials cut the prior, or thin it out, and transforms may cut it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph import ancestors, clone_replace, vectorize_graph

from pm_sysid.compat import CustomDistRV, NoneTypeT, RandomVariable, change_dist_size, reseed_rngs
from pm_sysid.environment import compiling
from pm_sysid.likelihood.coordinates import Coordinates, added_transforms, for_each_particle
from pm_sysid.likelihood.kept import once

#: Prior draws for each that obeys the potentials, beyond which these are taken for a mistake.
TRIED_FOR_EACH = 100_000
#: Draws after which constraints that none obeys are refused; a draw made together with others costs less.
TRIED_TOGETHER, TRIED_ONE_BY_ONE = 1_000_000, 100_000
#: Draws after which those that were found are too few, however many these are.
MOST_TRIED = 30_000_000
#: Draws that tell whether transforms cut the prior.
TELLING = 1000
#: Most draws made together.
BLOCK = 100_000

type Columns = list[np.ndarray]


def draw_prior(coordinates: Coordinates, draws: int, random_seed: Any = None) -> np.ndarray:
    """Particles from the prior of a model, shape (draws, d).

    Raises
    ------
    ValueError
        If hardly any draw obeys the constraints, or a potential is positive.
    """
    return draw_prior_and_mass(coordinates, draws, random_seed)[0]


class Mass(NamedTuple):
    """Logarithm of the share of the prior that potentials and transforms leave, and its standard error."""

    log: float = 0.0
    error: float = 0.0


def constrained(coordinates: Coordinates) -> bool:
    """Whether potentials or transforms cut the prior, or thin it out."""
    model = coordinates.model
    if model.potentials or not added_transforms(model):
        return bool(model.potentials)
    try:
        rows = once(model, coordinates.point, constrained, lambda: free_draws(coordinates, TELLING, 0))
    except NotImplementedError:  # nothing that begins with draws of the prior can take this model
        return False
    return not np.isfinite(rows).all()


def draw_prior_and_mass(coordinates: Coordinates, draws: int, random_seed: Any = None) -> tuple[np.ndarray, Mass]:
    """Particles from the prior of a model, shape (draws, d), and the share of the draws that its constraints kept."""
    if not coordinates.model.potentials:
        rows = free_draws(coordinates, draws, random_seed)
        if np.isfinite(rows).all():
            return rows, Mass()
        if not added_transforms(coordinates.model):
            raise _outside(coordinates, rows)
    rng = np.random.default_rng(random_seed)
    (rows,), mass = _thinned(
        draws, rng, lambda n: [free_draws(coordinates, n, rng)], lambda c: _log_chance(coordinates, c[0]), TRIED_TOGETHER, BLOCK
    )
    return rows, mass


def too_few_obey(coordinates: Coordinates, count: int) -> str:
    """Why ``count`` draws of a prior with constraints cannot be had, in words; empty if they can."""
    try:
        share = np.exp(draw_prior_and_mass(coordinates, min(count, TELLING), 0)[1].log)
    except ValueError as error:
        return str(error).removesuffix(".")
    if count <= share * MOST_TRIED:
        return ""
    return f"one of {1 / share:.2g} prior draws obeys the model's potentials and transforms"


def _outside(coordinates: Coordinates, rows: np.ndarray) -> ValueError:
    """What is said where a distribution draws values that its own transform cannot take: zero, or one, by rounding."""
    column = int(np.argmax(~np.isfinite(rows).all(axis=0)))
    label = coordinates.labels[column]
    if label.endswith("_log__") and np.isneginf(rows[:, column]).any():
        return ValueError(
            f"the prior of {label} draws numbers that are zero to the last digit and have no logarithm: much of its mass is at "
            "the smallest numbers there are, as that of a Gamma distribution with a small shape. Give it less there: a larger "
            "shape, or (in place of a precision) a prior of the standard deviation, such as HalfNormal or LogNormal."
        )
    return ValueError(
        f"the prior of {label} draws values its transform cannot take; give it a prior whose draws obey the constraint, or "
        "start from particles of your own."
    )


def _log_chance(coordinates: Coordinates, rows: np.ndarray) -> np.ndarray:
    """Potential (n,) of draws (n, d); minus infinity where a transform cannot take a value."""
    possible = np.isfinite(rows).all(axis=1)
    if not added_transforms(coordinates.model):  # at a bound by rounding, where the prior is as it is
        possible[:] = True
    result = np.where(possible, 0.0, -np.inf)
    if coordinates.model.potentials and possible.any():
        result[possible] = coordinates.potential(rows[possible])
    return result


def free_draws(coordinates: Coordinates, draws: int, random_seed: Any) -> np.ndarray:
    """Particles (draws, d) from the distributions of the free variables, NaN where transforms cannot take them."""
    return coordinates.columns(_free_columns(coordinates, draws, random_seed), draws)


def possible_draws(coordinates: Coordinates, draws: int, random_seed: Any) -> np.ndarray:
    """Those of :func:`free_draws` that the transforms can take, (draws or fewer, d).

    Raises
    ------
    NotImplementedError
        If a prior cannot be drawn from, such as ``pm.Flat``.
    """
    rows = free_draws(coordinates, draws, random_seed)
    fine: np.ndarray = rows[np.isfinite(rows).all(axis=1)]
    return fine


def _free_columns(coordinates: Coordinates, draws: int, random_seed: Any) -> Columns:
    """Draws (draws, ...) of the free variables, each in its unconstrained space."""
    try:
        return _drawn_columns(coordinates, draws, random_seed)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"a prior cannot be drawn from ({error}), and searches and sequential sampling begin with draws of the prior; give "
            "proper priors, such as pm.Normal or pm.Uniform over what is possible, or use pm.sample."
        ) from error


def _drawn_columns(coordinates: Coordinates, draws: int, random_seed: Any) -> Columns:
    variables, values = _conditioned(coordinates.model)
    # A variable of the prior may be drawn from another one: all are drawn together.
    many = _together(variables, values, draws) if draws > 1 else None
    if many is not None:
        # NumPy draws arrays as fast as compiled code does, and nothing need be compiled.
        with compiling:
            return list(pm.draw(many, random_seed=random_seed, mode="FAST_COMPILE"))
    with compiling:
        drawn = pm.draw(values, draws=draws, random_seed=random_seed)
    return [v[None] for v in drawn] if draws == 1 else list(drawn)


def _unconstrained(model: pm.Model) -> list[Any]:
    """Graphs of the free variables, each in its unconstrained space."""
    transforms = [model.rvs_to_transforms[rv] for rv in model.free_RVs]
    pairs = zip(model.free_RVs, transforms, strict=True)
    return [rv if transform is None else transform.forward(rv, *rv.owner.inputs) for rv, transform in pairs]


def _conditioned(model: pm.Model) -> tuple[list[Any], list[Any]]:
    """Free variables, and their graphs in unconstrained space, below observed variables by what has been observed.

    Drawn anew, an observed variable would take the free one away from where its density is.
    """
    variables, values = list(model.free_RVs), _unconstrained(model)
    above = set(ancestors(variables)) & set(model.observed_RVs)
    if not above:
        return variables, values
    data = {rv: model.rvs_to_values[rv].astype(rv.dtype) for rv in above}
    both = clone_replace([*variables, *values], replace=data, rebuild_strict=False)
    return both[: len(variables)], both[len(variables) :]


def _together(variables: Sequence[Any], values: Sequence[Any], draws: Any) -> list[Any] | None:
    """Graphs of values (draws, ...) in which every variable is drawn many times at once; None where one cannot be."""
    many = dict[Any, Any]()
    try:
        for rv in variables:  # in the order in which they were made, each after those it depends on
            above = set(ancestors([rv])) & (set(variables) - {rv})
            many[rv] = _given(rv, {v: many[v] for v in above}, draws) if above else change_dist_size(rv, (draws,), expand=True)
        batched = vectorize_graph(list(values), many)
    except Exception:  # whatever a distribution of the user's own does not support
        return None
    full = [for_each_particle(v.type.ndim, b, draws) for b, v in zip(batched, values, strict=True)]
    return full if all(f.type.ndim == v.type.ndim + 1 for f, v in zip(full, values, strict=True)) else None


def _given(rv: Any, drawn: dict[Any, Any], draws: Any) -> Any:
    """A variable (draws, ...) that depends on others, many of which have been drawn.

    PyTensor gives a variable whose size is known more of them where its first parameter is one of many, and no other.
    """
    node = rv.owner
    if isinstance(node.op, CustomDistRV):
        raise NotImplementedError("a function of the user's own may not take many parameters at a time")
    if not isinstance(node.op, RandomVariable):
        return vectorize_graph(rv, drawn)
    size = node.op.size_param(node)
    if set(ancestors([size])) & drawn.keys():
        raise NotImplementedError("a size that hangs on another variable would have it drawn twice")
    params = vectorize_graph(list(node.op.dist_params(node)), drawn)
    if not isinstance(size.type, NoneTypeT):
        size = (draws, *size)  # each by itself: PyTensor then knows which of them are one
    return node.op.make_node(node.inputs[0], size, *params).default_output()


class Prior:
    """Draws of the free variables of a model, with or without what they make the observed ones, compiled once.

    Parameters
    ----------
    model : pm.Model
        Its potentials cut the prior, or thin it out, as they do in :class:`Target`.
    observed : bool, default False
        Whether to draw the observed variables, too.
    """

    def __init__(self, model: pm.Model, *, observed: bool = False) -> None:
        self.model, self.coordinates = model, Coordinates(model)
        self.names = [rv.name for rv in model.free_RVs]
        self.others = [rv.name for rv in model.observed_RVs] if observed else []
        free, values = (list(model.free_RVs), _unconstrained(model)) if observed else _conditioned(model)
        variables = [*free, *(model.observed_RVs if observed else [])]
        with compiling:  # unconstrained values, too: they tell whether a draw obeys the constraints
            self._draw, updates = pm.compile([], [*variables, *values], return_updates=True)
        self._rngs = list(updates)

    def draw(self, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws (count, ...) of each variable by name.

        Raises
        ------
        ValueError
            If hardly any draw obeys the constraints, or a potential is positive.
        """
        reseed_rngs(self._rngs, int(rng.integers(2**63)))
        columns, _ = _thinned(
            count,
            rng,
            lambda n: [np.stack(v) for v in zip(*(self._draw() for _ in range(n)), strict=True)],
            lambda c: _log_chance(self.coordinates, self.coordinates.columns(c[-len(self.names) :], len(c[0]))),
            TRIED_ONE_BY_ONE,
            block=1,
        )
        return dict(zip([*self.names, *self.others], columns, strict=False))

    def particles(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Particles (count, d) in unconstrained space, drawn together if the model allows it, by a function compiled once.

        Raises
        ------
        ValueError
            As :meth:`draw` does.
        """
        if self._many is None:
            drawn = self.draw(count, rng)
            return self.coordinates.unconstrained({name: drawn[name] for name in self.names})
        function, rngs = self._many
        reseed_rngs(rngs, int(rng.integers(2**63)))
        (rows,), _ = _thinned(
            count,
            rng,
            lambda n: [self._taken(self.coordinates.columns(function(n), n))],
            lambda c: _log_chance(self.coordinates, c[0]),
            TRIED_TOGETHER,
            BLOCK,
        )
        return rows

    def _taken(self, rows: np.ndarray) -> np.ndarray:
        """Rows that the distributions' own transforms can take."""
        if not np.isfinite(rows).all() and not added_transforms(self.model):
            raise _outside(self.coordinates, rows)
        return rows

    @cached_property
    def _many(self) -> tuple[Callable[[int], Columns], list[Any]] | None:
        """Function of the number of draws to columns, and its generators; None where each has to be drawn by itself."""
        number = pt.lscalar("draws")
        graphs = _together(*_conditioned(self.model), number)
        if graphs is None:
            return None
        with compiling:  # in NumPy, as in _drawn_columns
            function, updates = pm.compile([number], graphs, mode="FAST_COMPILE", return_updates=True)
        return function, list(updates)


def _thinned(
    count: int,
    rng: np.random.Generator,
    draw: Callable[[int], Columns],
    potential: Callable[[Columns], np.ndarray],
    limit: int,
    block: int,
) -> tuple[Columns, Mass]:
    """Arrays (count, ...) of draws, each kept with the probability exp(potential), and the mean of this probability.

    ``draw(n)`` makes n draws, at most ``block`` of them together. More than ``limit`` in vain are refused, and so are more than
    ``TRIED_FOR_EACH`` for each that is kept.
    """
    kept: list[Columns] = []
    found = tried = 0
    first = second = 0.0
    while found < count:
        # Fewer draws obey narrow constraints: then they are drawn by many.
        n = min(max(count, 10 * tried), block)
        columns = draw(n)
        log_chance = potential(columns)
        obeying = _obeying(log_chance, rng)
        chance = np.exp(log_chance)
        first, second = first + float(chance.sum()), second + float((chance**2).sum())
        kept.append([c[obeying] for c in columns])
        found, tried = found + int(obeying.sum()), tried + n
        if found < count and tried >= min(max(limit, TRIED_FOR_EACH * found), MOST_TRIED):
            if not found:
                raise ValueError(
                    f"0 of {tried} prior draws obey the model's potentials and transforms; the constraints contradict "
                    "the priors."
                )
            raise ValueError(
                f"{found} of {tried} prior draws obey the model's potentials and transforms: too few for a run that begins "
                "there. Write the constraint into the parameters (one of them as a function of the others), make it wider, or "
                'sample from a mode, by sid.sample(method="nuts").'
            )
    mass = Mass(np.log(first / tried), np.sqrt(max(second / first**2 - 1 / tried, 0.0)))
    return [np.concatenate(parts)[:count] for parts in zip(*kept, strict=True)], mass


def _obeying(potential: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which draws are kept."""
    if np.any(potential > 0):
        raise ValueError(
            f"a potential of the model is {np.nanmax(potential):.3g} for a draw of the prior; prior draws can only be thinned "
            "out: write potentials that are at most zero (constraints are zero or minus infinity)."
        )
    if np.isin(potential, (0.0, -np.inf)).all():
        return np.asarray(potential == 0.0)
    keep: np.ndarray = -rng.standard_exponential(len(potential)) < potential
    return keep
