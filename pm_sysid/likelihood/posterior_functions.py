"""The log posterior of a model as compiled functions of many points, made once a model.

Points are rows of the unconstrained space of the model's value variables. New data (``set_data``) are seen through the shared
variables of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph import ancestors
from pytensor.graph.basic import Variable

from pm_sysid.compat import ParameterValueError, join_nonshared_inputs
from pm_sysid.likelihood.coordinates import Coordinates, check_continuous, checked
from pm_sysid.likelihood.filter_view import filter_names, value_of
from pm_sysid.likelihood.kept import kept
from pm_sysid.likelihood.tempering import calibrated_diffusions, loose_filters, tempered_logp
from pm_sysid.progress import Announced, compiling
from pm_sysid.recurrence.functions import compiled, on_whole_arrays, together

#: Most observed numbers times points in one batch.
BATCH = 4_000_000
#: Points in one batch at most, and at least.
MOST, FEWEST = 512, 16
#: Steps of one evaluation from which on all gradients are computed in lanes. To compile them takes 2.5 s of processor time
#: more than for one point (a Duffing oscillator), and saves 2.3 ms for each of 1000 or more gradients at 800 steps.
IN_LANES = 500
#: Of fewer steps, a search computes this many gradients one by one, which takes as long as compiling, and others in lanes.
SINGLE = 1500
#: Where it is kept whether NumPy computes a gradient. By numba one takes microseconds, and lanes half a minute to compile.
BY_NUMPY = "gradient by NumPy"

#: Functions by their names, in words.
WORDS = {
    "values": "log posterior of many points",
    "gradients": "log posterior and gradient of many points",
    "gradient": "log posterior and gradient",
    "diffusions": "diffusions of the filters",
    "priors": "densities of the prior",
    "free": "free variables at a point",
}


class PosteriorFunctions:
    """Functions of a model, compiled when they are first used and kept as long as the model lives.

    Parameters
    ----------
    model : pm.Model
        With continuous free variables.

    Attributes
    ----------
    coordinates : Coordinates
        Names of the coordinates and the model's initial point.
    views : list of FilterView
        Filters whose diffusion can be raised.
    """

    def __init__(self, model: pm.Model) -> None:
        check_continuous(model, "a mode has a gradient in continuous ones only")
        self.model, self.coordinates = model, Coordinates(model)
        self.views = loose_filters(model)
        self._single = 0  # gradients computed each by itself
        self._kept = kept(model, self.coordinates.point)

    def begin(self) -> None:
        """Begin a search as any other: its result must not depend on how many there were before."""
        self._single = 0

    @property
    def first(self) -> np.ndarray:
        """The model's initial point (d,)."""
        point = self.coordinates.point
        return np.concatenate([np.ravel(point[v.name]) for v in self.model.value_vars]).astype(float)

    def values(self, points: np.ndarray) -> np.ndarray:
        """Log posterior (B,) of points (B, d), minus infinity where there is none."""
        function = self._once("values", self._compiled_values)
        parts = [_one_by_one(function, part)[0] for part in self._parts(points)]
        values = np.concatenate(parts)
        values[np.isnan(values)] = -np.inf
        return values

    def descent_function(self, added: list[np.ndarray] | None = None) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Negative log posterior (B,) and its gradient (B, d), of filters that are loosened by a diffusion for each chain."""
        long = self.work() > IN_LANES
        more = [np.zeros(len(view.system.chain_states)) for view in self.views] if added is None else added
        self._gradient_function(long)

        def evaluate(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            values, gradients = [], []
            # By the count of this search, whatever has been compiled before: rounding differs, and a seed gives one result.
            lanes = long or (self._single >= SINGLE and self._kept[BY_NUMPY])
            self._single += 0 if lanes else len(points)
            function = self._gradient_function(lanes)
            for part in self._parts(points) if lanes else points[:, None]:
                value, gradient = _one_by_one(lambda rows: function(rows, *more), part)
                values.append(-value)
                gradients.append(-gradient)
            value, gradient = np.concatenate(values), np.concatenate(gradients)
            lost = ~np.isfinite(value) | ~np.isfinite(gradient).all(axis=1)
            value[lost], gradient[lost] = np.inf, 0.0
            return value, gradient

        return evaluate

    def _gradient_function(self, lanes: bool) -> Any:
        name, build = ("gradients", self._compiled_gradients) if lanes else ("gradient", self._compiled_gradient)
        return self._once(name, build)

    def diffusions(self, points: np.ndarray) -> list[np.ndarray]:
        """What the equations alone say of the diffusion (B, chains) of each of ``views`` at points.

        Of records with parameters of their own, each of which has one, it is the root mean square.
        """
        values = self._once("diffusions", self._compiled_diffusions)(np.ascontiguousarray(points))
        one = [np.sqrt(np.mean(v**2, axis=-2)) if v.ndim == 3 else v for v in values]
        return [np.broadcast_to(v, (len(points), v.shape[-1])) for v in one]

    def priors(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Log density (B, ...) of each entry of the free variables whose prior has no unknowns, at points (B, d), by name.

        In the coordinates of the points: densities of their transforms are part of it.
        """
        names, function = self._once("priors", self._compiled_priors)
        with np.errstate(all="ignore"):
            values = function(np.ascontiguousarray(points)) if names else []
        return {n: np.broadcast_to(v, (len(points), *np.shape(v)[1:])) for n, v in zip(names, values, strict=True)}

    def free(self, point: np.ndarray) -> dict[str, np.ndarray]:
        """Free variables at a point (d,), by name."""
        names, function = self._once("free", self._compiled_free)
        values, at = [], 0
        for v in self.model.value_vars:
            shape = np.shape(self.coordinates.point[v.name])
            size = int(np.prod(shape))
            values.append(np.reshape(point[at : at + size], shape))
            at += size
        return dict(zip(names, function(*values), strict=True))

    # -- compilation --------------------------------------------------------------------------------------------------

    def search_functions(self, draws: int) -> list[str]:
        """What a search from so many prior draws compiles and has not yet, in words."""
        gradient = "gradients" if self.work() > IN_LANES else "gradient"
        names = [gradient, *(["values"] if draws else []), "free"]
        return [WORDS[name] for name in names if name not in self._kept]

    def _once(self, name: str, build: Callable[[], Any]) -> Any:
        if name not in self._kept:
            with compiling(WORDS[name]):
                self._kept[name] = build()
        return self._kept[name]

    def _compiled_values(self) -> Any:
        particles = pt.dmatrix("particles")
        batched = self.coordinates.vectorised([checked(self.model.logp())], particles)
        return Announced(WORDS["values"], compiled([particles], batched, trust_input=True))

    def _tempered(self) -> tuple[Variable, list[Variable]]:
        """Log posterior, and what is added to the diffusions of ``views`` in it."""
        added = [pt.dvector(f"{view.name}::added") for view in self.views]
        return checked(tempered_logp(self.model, self.views, added) if self.views else self.model.logp()), added

    def _compiled_gradients(self) -> Any:
        """Of many points in lanes."""
        particles = pt.dmatrix("particles")
        graph, added = self._tempered()
        (value,) = self.coordinates.vectorised([graph], particles)
        gradient = pytensor.grad(value.sum(), particles, disconnected_inputs="ignore")
        return Announced(WORDS["gradients"], compiled([particles, *added], [value, gradient], trust_input=True))

    def _compiled_gradient(self) -> Any:
        """Of one point, in a batch of its own."""
        graph, added = self._tempered()
        (value,), point = join_nonshared_inputs(self.coordinates.point, [graph], self.model.value_vars)
        gradient = pytensor.grad(value, point, disconnected_inputs="ignore")
        self._kept[BY_NUMPY] = on_whole_arrays([point, *added], [value, gradient])
        function = Announced(WORDS["gradient"], compiled([point, *added], [value, gradient], trust_input=True))

        def row(points: np.ndarray, *more: np.ndarray) -> list[np.ndarray]:
            value, gradient = function(points[0], *more)
            return [value[None], gradient[None]]

        return row

    def _compiled_diffusions(self) -> Any:
        particles = pt.dmatrix("particles")
        batched = self.coordinates.vectorised([checked(g) for g in calibrated_diffusions(self.views)], particles)
        return Announced(WORDS["diffusions"], compiled([particles], batched, trust_input=True))

    def _compiled_priors(self) -> tuple[list[str], Any]:
        free = set(self.model.free_RVs)
        roots = [rv for rv in self.model.free_RVs if not free & set(ancestors(rv.owner.inputs))]
        particles = pt.dmatrix("particles")
        graphs = self.model.logp(vars=roots, sum=False) if roots else []
        batched = self.coordinates.vectorised(graphs, particles) if roots else []
        return [rv.name for rv in roots], Announced(WORDS["priors"], compiled([particles], batched, trust_input=True))

    def _compiled_free(self) -> tuple[list[str], Any]:
        names = [v.name for v in self.model.free_RVs]
        wanted = [v for v in self.model.unobserved_value_vars if v.name in names]
        function = Announced(WORDS["free"], compiled(self.model.value_vars, wanted))
        return [v.name for v in wanted], function

    # -- sizes --------------------------------------------------------------------------------------------------------

    @property
    def observed(self) -> int:
        """Observed numbers."""
        return self._numbers(self.model.observed_RVs)

    def _outside(self) -> int:
        """Observed numbers of which no filter has the likelihood."""
        filters = filter_names(self.model)
        return self._numbers([v for v in self.model.observed_RVs if v.name not in filters])

    def _numbers(self, observed: Iterable[Variable]) -> int:
        return sum(int(np.size(value_of(self.model.rvs_to_values[rv]))) for rv in observed)

    def work(self) -> int:
        """Steps of one evaluation."""
        steps = sum(len(value_of(view.data.substeps)) for view in self.views)
        return steps + self.observed

    def _parts(self, points: np.ndarray) -> list[np.ndarray]:
        size = min(int(np.clip(BATCH // max(self.observed, 1), FEWEST, MOST)), together(self._outside()))
        return [np.ascontiguousarray(points[i : i + size]) for i in range(0, len(points), size)]


def _one_by_one(function: Callable[[np.ndarray], Any], points: np.ndarray) -> list[np.ndarray]:
    """Outputs of a batch; where a point makes it fail, each by itself, with NaN for those that fail."""
    try:
        with np.errstate(all="ignore"):
            return [np.array(np.broadcast_to(v, (len(points), *np.shape(v)[1:]))) for v in function(points)]
    except (ParameterValueError, np.linalg.LinAlgError, ValueError):  # such as a matrix that is not positive definite
        if len(points) == 1:
            return [np.array([np.nan]), np.zeros_like(points)]
        rows = [_one_by_one(function, point[None]) for point in points]
        return [np.concatenate(parts) for parts in zip(*rows, strict=False)]
