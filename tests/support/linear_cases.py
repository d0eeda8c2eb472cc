"""Linear systems, records of them and settings of the filter, to compare with dense formulas."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile.mode import Mode

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.filter_graph import Unknowns
from pm_sysid.solve.options import EK0, EK1
from support.dense import Linear, Linearisation, Setting

PYTHON = Mode(linker="py", optimizer=None)

OSCILLATOR = dict(F=[[0, 1], [-36, -0.7]], B=[[0], [36]], rate=6.0)

#: Two chains, the states in an order that is neither by chain nor by level: (v, r, z).
MIXED = dict(F=[[-0.7, -9, -30], [2.5, -4, 0], [1, 0, 0]], B=[[36, 0], [2, 5], [0, 0]], chains=((1,), (2, 0)), rate=6.0)

TWO = dict(
    F=[[0, 1, 0, 0], [-50, -0.9, 20, 0.3], [0, 0, 0, 1], [14, 0.2, -30, -0.4]],
    B=[[0], [40], [0], [-9]],
    chains=((0, 1), (2, 3)),
    rate=6.5,
)

MASS, STIFFNESS, DAMPING = 5e-6, 1.0, 2.3e-4

SYSTEMS = {
    "oscillator": Linear(**OSCILLATOR, C=[[1, 0]], D=[[0, 0]], chains=((0, 1),)),
    "oscillator, acceleration": Linear(**OSCILLATOR, C=[[1, 0], [0, 0.2]], D=[[0, 0], [0, 1]], chains=((0, 1),)),
    "first-order form": Linear(**OSCILLATOR, C=[[1, 0]], D=[[0, 0]], chains=((0,), (1,)), detect=False),
    "lag": Linear([[-4]], [[3]], [[1]], [[0]], chains=((0,),), rate=4.0),
    "third": Linear(
        [[0, 1, 0], [0, 0, 1], [-160, -60, -9]],
        [[0], [0], [160]],
        [[1, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 1]],
        chains=((0, 1, 2),),
        rate=6.0,
    ),
    # Each output sees both chains.
    "mixed": Linear(**MIXED, C=[[0, 0.4, 1], [0.1, -1, 0]], D=[[0, 0, 0], [0.05, 0, 0]]),
    "two": Linear(**TWO, C=[[1, 0, -1, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]], D=[[0] * 4, [0] * 4, [0, 0.3, 0, 1]]),
    # Each output sees one chain.
    "mixed, local": Linear(**MIXED, C=[[0, 0, 1], [0, 1, 0]], D=[[0.05, 0, 0], [0, 0.1, 0]]),
    "two, local": Linear(**TWO, C=[[1, 0.1, 0, 0], [0, 0, 0, 0]], D=[[0] * 4, [0, 0, 0, 1]]),
    "decoupled": Linear(
        [[0, 1, 0], [-36, -0.7, 0], [0, 0, -3]],
        [[0], [36], [4]],
        [[1, 0, 0], [0, 0, 1]],
        [[0, 0.03, 0], [0, 0, 0]],
        chains=((0, 1), (2,)),
        rate=6.0,
    ),
    "unforced": Linear([[0, 1], [-36, -0.7]], np.empty((2, 0)), [[1, 0]], [[0, 0]], chains=((0, 1),), rate=6.0),
    "silverbox": Linear(
        [[0, 1], [-STIFFNESS / MASS, -DAMPING / MASS]],
        [[0], [1 / MASS]],
        [[1, 0], [0, 0]],
        [[0, 0], [0, 1]],
        chains=((0, 1),),
        rate=(STIFFNESS / MASS) ** 0.5,
    ),
}

#: What leaves one tank enters another.
CLOSED = dict(
    F=[[-2, 1, 0.5], [1.5, -1.8, 0.7], [0.5, 0.8, -1.2]], B=[[3], [-2.5], [-0.5]], chains=((0,), (1,), (2,)), rate=3.0
)

SYSTEMS |= {
    "closed": Linear(**CLOSED, C=[[0, 1, 0], [0.3, 0, 0.4]], D=[[0] * 3, [0, 0, 0.1]], relations=[((1, 1, 1), 2.0)]),
    # Relations that no solution obeys: the Gaussian is the same, and nothing in it is implied or zero.
    "tied": Linear(**OSCILLATOR, C=[[1, 0], [0, 0.2]], D=[[0, 0], [0, 1]], chains=((0, 1),), relations=[((2, 0.3), 0.4)]),
    "tied twice": Linear(
        **TWO,
        C=[[1, 0, -1, 0], [0, 0, 0.5, 0]],
        D=[[0] * 4, [0, 0.3, 0, 1]],
        relations=[((1, 0, 0.5, 0), 0.2), ((0, 1, 0, -0.4), 0.1)],
    ),
}

TIMES = {
    "uniform": [0, 1, 2, 3, 4],
    "uneven": [0, 1, 1.7, 3, 3.8],
    "gap": [0, 1, 2, 5.5, 6.5],
    "nine": list(range(9)),
    "one": [0],
}

UNCERTAIN = (0.3, 0.8, 0.2, 0.6)


class Case(NamedTuple):
    """One combination; ``step`` is the sampling step in radians, ``times`` has one entry a record."""

    system: str
    solver: type[EK0] | type[EK1]
    order: int
    intersample: Any = "zoh"
    times: tuple[str, ...] = ("uniform",)
    substeps: int = 1
    uncertain: tuple[int, ...] = ()
    missing: str = "none"
    covariance: Any = "dense"
    step: float = 0.6
    periodic: bool = False

    def __str__(self) -> str:
        """Return the test's name."""
        parts = [self.system, f"{self.solver.__name__}({self.order})", self.intersample, "+".join(self.times)]
        parts += [f"x{self.substeps}", self.covariance, f"missing {self.missing}"]
        parts += [f"free {self.uncertain}"] if self.uncertain else []
        return "; ".join(parts).replace("[", "(")


def blank(y: np.ndarray, missing: str) -> np.ndarray:
    """Measurements with NaN where a pattern has them missing."""
    y = y.copy()
    if missing == "channels":
        y[1, 0] = y[2, -1] = y[0, -1] = np.nan
    elif missing == "rows":
        y[1] = y[3] = np.nan
    elif missing == "ends":
        y[0] = y[-1] = np.nan
    elif missing == "all":
        y[:] = np.nan
    return y


@cache
def prepare(case: Case) -> tuple[Linear, list[TimeSeries], list[Setting]]:
    """Records of a case, drawn with a seed of its own, and what the filter is told about each."""
    linear = SYSTEMS[case.system]
    rng = np.random.default_rng(sum(map(ord, str(case))))
    w, n_u, n_x = linear.rate, linear.B.shape[1], len(linear.F)
    level = np.zeros(n_x)
    for chain in linear.chains:
        level[list(chain)] = w ** np.arange(len(chain))
    diffusion = [0.4 * (1 + 0.5 * c) * w ** (case.order + 0.5) * level[chain[0]] for c, chain in enumerate(linear.chains)]
    records, settings = [], []
    for name in case.times:
        t = 0.3 + np.array(TIMES[name]) * case.step / w
        u = rng.normal(size=(len(t), n_u)) if n_u else None
        record = TimeSeries(t, u, intersample=case.intersample, periodic=case.periodic)
        x0 = rng.normal(size=n_x) * level
        for row, value in linear.relations if not case.uncertain else ():
            x0 = x0 - np.array(row) * (row @ x0 - value) / np.dot(row, row)
        std = np.where(np.isin(np.arange(n_x), case.uncertain), UNCERTAIN[:n_x], 0.0) * level
        clean = linear.simulate(record, x0 + std * rng.normal(size=n_x))
        noise = 1e-2 * np.maximum(np.abs(clean).max(axis=0), 1e-3)
        y = blank(clean + noise * rng.normal(size=clean.shape), case.missing)
        records.append(record.replace(y=y))
        settings.append(Setting(case.order, diffusion, noise, x0, std, case.substeps))
    settings = [s._replace(noise=settings[0].noise) for s in settings]
    return linear, records, settings


def unknowns(linear: Linear, settings: Sequence[Setting]) -> Unknowns:
    """Numbers of a case as the package wants them."""
    first = settings[0]
    x0, std = (np.array([getattr(s, name) for s in settings]) for name in ("x0", "x0_std"))
    return Unknowns(linear.params, x0, std, np.asarray(first.noise), np.array(first.diffusion))


def linearisation_of(case: Case) -> Linearisation:
    """Return the reference a case should agree with."""
    return "ek0" if case.solver is EK0 else "ek1"
