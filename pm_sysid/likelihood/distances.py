"""How far a simulated record is from the measured one: one number, for approximate Bayesian computation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pm_sysid.recurrence.backends import before_compiling


class Measure(NamedTuple):
    """``100 (mean |e|^power)^root`` of standardised errors ``e``."""

    power: int
    root: float

    def __call__(self, errors: Any) -> Any:
        """Measure of errors (..., n), arrays or tensors."""
        return self.of_mean((abs(errors) ** self.power).mean(axis=-1))

    def of_mean(self, mean: Any) -> Any:
        """Measure of errors whose mean power is known."""
        return 100 * mean**self.root


#: Distances by name: errors over the standard deviation of what was measured, in percent.
MEASURES = {"nmse": Measure(2, 1.0), "nrmse": Measure(2, 0.5), "nmae": Measure(1, 1.0)}


class Channel(NamedTuple):
    """Where one output of one record was measured: the record, rows of the joined records, and a column."""

    record: int
    rows: slice | NDArray[np.int64]
    column: int

    def of(self, table: Any) -> Any:
        """Values (..., n) of a table (..., T, n_y)."""
        return table[..., self.column][..., self.rows]


class Distance(Protocol):
    """A distance of simulated records (..., T, n_y) from the observed ones (T, n_y), joined along time."""

    @property
    def symbolic(self) -> bool:
        """Whether it takes tensors too."""

    def __call__(self, observed: Any, simulated: Any) -> Any:
        """Distances (...); NaN or infinite where a simulation diverged."""


@dataclass(frozen=True)
class MeanDistance:
    """A measure of standardised errors, averaged over outputs and records; missing samples do not count."""

    measure: Measure
    channels: tuple[Channel, ...]
    symbolic = True

    def __call__(self, observed: Any, simulated: Any) -> Any:
        """Distances (...) of arrays or tensors."""
        terms = []
        for channel in self.channels:
            y = channel.of(observed)
            terms.append(self.measure((channel.of(simulated) - y) / y.std()))
        return sum(terms[1:], terms[0]) / len(terms)

    def of_squares(self, observed: Any, squares: Sequence[Any]) -> Any:
        """Distances (...) from sums of squared errors (...), one for each channel."""
        terms = [
            self.measure.of_mean(total / (channel.of(observed).size * channel.of(observed).var()))
            for channel, total in zip(self.channels, squares, strict=True)
        ]
        return sum(terms[1:], terms[0]) / len(terms)


@dataclass(frozen=True)
class FunctionDistance:
    """A user's function of an observed and a simulated record, averaged over records."""

    function: Callable[[Any, Any], Any]
    edges: tuple[int, ...]
    flat: bool
    symbolic = False

    def __call__(self, observed: Any, simulated: Any) -> Any:
        """Distances (...) of arrays, one call each."""
        if simulated.ndim > 2:
            return np.array([self(observed, s) for s in simulated])
        values = []
        for begin, end in pairwise(self.edges):
            pair = observed[begin:end], simulated[begin:end]
            result = np.asarray(self.function(*(p[:, 0] for p in pair)) if self.flat else self.function(*pair), dtype=float)
            if result.ndim > 1:
                raise ValueError(
                    f"distance returned an array of shape {result.shape}; return a number, or one for each output."
                )
            values.append(result.mean())
        return np.mean(values)


def distance_of(what: Any, records: Sequence[np.ndarray], *, flat: bool) -> Distance:
    """Distance from measured records (T, n_y) by name or by a function of the user.

    Parameters
    ----------
    what : {"nmse", "nrmse", "nmae"} or callable
    records : sequence of ndarray, shape (T, n_y)
        NaN where missing.
    flat : bool
        Whether a function takes records of shape (T,).
    """
    edges = np.cumsum([0, *map(len, records)])
    if callable(what):
        return FunctionDistance(what, tuple(map(int, edges)), flat)
    if not isinstance(what, str) or what not in MEASURES:
        raise ValueError(f"distance is {what!r}; give one of {sorted(MEASURES)}, or a function of (observed, simulated).")
    channels = []
    for r, record in enumerate(records):
        for column, y in enumerate(record.T):
            (seen,) = np.nonzero(~np.isnan(y))
            if not seen.size:
                continue
            if not np.std(y[seen]) > 0:
                raise ValueError(
                    f"output {column} of record {r} is constant where it was measured, and distance={what!r} is in percent of "
                    "its standard deviation; leave it out (NaN), or give a function of (observed, simulated)."
                )
            rows = slice(int(edges[r]), int(edges[r + 1])) if seen.size == y.size else seen + edges[r]
            channels.append(Channel(r, rows, column))
    if not channels:
        raise ValueError("nothing was measured: all outputs are NaN, and there is nothing to be distant from.")
    return MeanDistance(MEASURES[what], tuple(channels))


# -- the kernel of a pm.Simulator -------------------------------------------------------------------------------------


def gaussian_kernel(distance: Distance, *, flat: bool) -> Op:
    """Pseudo-log-likelihood ``-(distance / epsilon)^2 / 2`` as the ``distance`` of a ``pm.Simulator``."""
    if not distance.symbolic:
        return FunctionKernel(distance)
    epsilon, table = pt.dscalar("epsilon"), (pt.dvector if flat else pt.dmatrix)
    observed, simulated = table("observed"), table("simulated")
    rho = distance(*((v[:, None] if flat else v) for v in (observed, simulated)))
    kernel = pt.switch(pt.isnan(rho), -np.inf, -0.5 * (rho / epsilon) ** 2)
    return OpFromGraph([epsilon, observed, simulated], [kernel], inline=True, name="gaussian_kernel")


class FunctionKernel(Op):
    """The kernel of a distance that is a Python function."""

    def __init__(self, distance: Distance) -> None:
        self.distance = distance

    def make_node(self, epsilon: Any, observed: Any, simulated: Any) -> Apply:
        """Threshold, observed and simulated records to a number."""
        return Apply(self, [pt.as_tensor(v) for v in (epsilon, observed, simulated)], [pt.dscalar("kernel")])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Call the function."""
        epsilon, *records = inputs
        with np.errstate(all="ignore"):
            rho = self.distance(*(np.reshape(r, (len(r), -1)) for r in records))
            output_storage[0][0] = np.asarray(-np.inf if np.isnan(rho) else -0.5 * (rho / epsilon) ** 2)


def _call_without_warning() -> None:
    """Have numba call the function as Python, without the warning that it is: whoever gives a Python function knows."""
    from pm_sysid.compat.numba import generate_fallback_impl, numba_funcify

    @numba_funcify.register(FunctionKernel)
    def interpreted(op: FunctionKernel, node: Apply, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Numba will use object mode", UserWarning)
            return generate_fallback_impl(op, node=node, **kwargs)


before_compiling("numba", "pm_sysid_distance", _call_without_warning)
