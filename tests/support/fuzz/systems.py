"""Random dynamic systems, solvers and records, each from one integer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor.tensor as pt

import pm_sysid as sid
from pm_sysid.records.timeseries import TimeSeries

#: Components of the largest covariance; compilation takes a time that grows with its cube.
COMPONENTS = 8


class TensorMath:
    """The functions systems are written with, for the package."""

    exp, log, sqrt, tanh, arctan, sin, cos = pt.exp, pt.log, pt.sqrt, pt.tanh, pt.arctan, pt.sin, pt.cos
    sign, abs, where, maximum, both = pt.sign, pt.abs, pt.switch, pt.maximum, pt.and_


class ArrayMath:
    """The same for numbers."""

    exp, log, sqrt, tanh, arctan, sin, cos = np.exp, np.log, np.sqrt, np.tanh, np.arctan, np.sin, np.cos
    sign, abs, where, maximum, both = np.sign, np.abs, np.where, np.maximum, np.logical_and


#: Functions of one variable: name, and the value with a namespace of functions.
SHAPES: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda f, x: x,
    "square": lambda f, x: x**2,
    "cube": lambda f, x: x**3,
    "fifth": lambda f, x: x**5,
    "sin": lambda f, x: f.sin(x),
    "cos": lambda f, x: f.cos(1.3 * x),
    "tanh": lambda f, x: f.tanh(2.0 * x),
    "arctan": lambda f, x: f.arctan(1.7 * x),
    "gauss": lambda f, x: f.exp(-(x**2)),
    "exp": lambda f, x: f.exp(-0.5 * x),
    "log": lambda f, x: f.log(1.0 + x**2),
    "root": lambda f, x: f.sqrt(0.3 + x * x),
    "rational": lambda f, x: x / (1.0 + x**2),
    "abs": lambda f, x: f.abs(x - 0.1),
    "sign": lambda f, x: f.sign(x + 0.05),
    "dead zone": lambda f, x: f.maximum(x - 0.2, 0.0 * x),
    "switch": lambda f, x: f.where(x > 0.15, 3.0 * x - 0.45, 0.5 * x),
    "band": lambda f, x: f.where(f.both(x > -0.3, x < 0.4), x**2, 0.1 * x),
}
ROUGH = ("abs", "sign", "dead zone", "switch", "band")


@dataclass(frozen=True)
class Term:
    """``params[coefficient]`` times shapes of variables ``(shape, group, index)``."""

    coefficient: int
    factors: tuple[tuple[str, str, int], ...]

    def value(self, f: Any, groups: dict[str, Sequence[Any]]) -> Any:
        result = groups["p"][self.coefficient]
        for shape, group, index in self.factors:
            result = result * SHAPES[shape](f, groups[group][index])
        return result


@dataclass(frozen=True)
class Structure:
    """All that is compiled: a system, a form of the filter, and the character of its records."""

    seed: int
    n_states: int
    n_inputs: int
    followers: dict[int, int]
    chains: bool
    terms: tuple[tuple[Term, ...], ...]
    outputs: tuple[tuple[Term, ...], ...]
    magnitudes: tuple[float, ...]
    order: int
    linear: bool
    block: bool
    diffusion: str
    free: tuple[int, ...]
    substeps: int
    intersample: str
    periodic: bool
    uneven: bool
    n_records: int

    def __repr__(self) -> str:
        return f"Structure(seed={self.seed}: {', '.join(sorted(self.features))})"

    # -- equations ----------------------------------------------------------------------------------------------------

    def dynamics(self, f: Any, t: Any, x: Sequence[Any], u: Sequence[Any], p: Sequence[Any]) -> list[Any]:
        groups = {"t": [t], "x": x, "u": u, "p": p}
        return [
            x[self.followers[i]] if i in self.followers else _total([term.value(f, groups) for term in self.terms[i]])
            for i in range(self.n_states)
        ]

    def observe(self, f: Any, t: Any, x: Sequence[Any], dx: Sequence[Any], u: Sequence[Any], p: Sequence[Any]) -> list[Any]:
        groups = {"t": [t], "x": x, "dx": dx, "u": u, "p": p}
        return [_total([term.value(f, groups) for term in terms]) for terms in self.outputs]

    @cached_property
    def system(self) -> sid.System:
        system = sid.System(
            lambda t, x, u, p: self.dynamics(TensorMath, t, x, u, p),
            states=[f"x{i}" for i in range(self.n_states)],
            inputs=[f"u{i}" for i in range(self.n_inputs)],
            params=[f"p{i}" for i in range(len(self.magnitudes))],
            observe=lambda t, x, dx, u, p: tuple(self.observe(TensorMath, t, x, dx, u, p)),
            chains=self.chains,
        )
        assert system.chain_states == self.chain_states
        return system

    @property
    def chain_states(self) -> tuple[tuple[int, ...], ...]:
        return _chains(self.n_states, self.followers if self.chains else {})

    @property
    def solver(self) -> sid.EK0 | sid.EK1:
        diffusion: Any = 1.0 if self.diffusion == "fixed" else self.diffusion
        cls = sid.EK1 if self.linear else sid.EK0
        return cls(order=self.order, diffusion=diffusion, covariance="block" if self.block else "dense")

    @property
    def features(self) -> set[str]:
        """What a table of disagreements is sorted by."""
        shapes = {s for terms in (*self.terms, *self.outputs) for t in terms for s, *_ in t.factors}
        groups = {g for terms in (*self.terms, *self.outputs) for t in terms for _, g, _ in t.factors}
        longest = max(len(c) for c in self.chain_states)
        return {
            f"EK{int(self.linear)}({self.order})",
            "block" if self.block else "dense",
            f"diffusion {self.diffusion}",
            f"{self.n_states} states",
            f"{len(self.outputs)} outputs",
            f"{self.n_inputs} inputs",
            f"chain of {longest}",
            ("periodic " if self.periodic else "") + self.intersample,
            "uneven times" if self.uneven else "uniform times",
            f"{self.n_records} records",
            f"{self.substeps} substeps",
            *(["uncertain start"] if self.free else []),
            *(["switching"] if shapes & set(ROUGH) else ["smooth"]),
            *(["time in the equations"] if "t" in groups else []),
            *(["derivative observed"] if "dx" in groups else []),
        }

    # -- records ------------------------------------------------------------------------------------------------------

    @property
    def smoothness(self) -> int | None:
        """Order of the first derivative of the input that jumps."""
        if self.n_inputs == 0 or (self.periodic and self.intersample == "bl"):
            return None
        return {"zoh": 0, "foh": 1, "bl": 3 if self.uneven else 7}[self.intersample]

    def records(self, rng: np.random.Generator) -> list[TimeSeries]:
        """Records without outputs, all of the character that the filter is built for."""
        while True:
            step = rng.uniform(0.05, 0.15)
            records = [self._record(rng, step) for _ in range(self.n_records)]
            if not self.uneven or any(not r.uniform and len(r) > 1 for r in records):
                return records

    def _record(self, rng: np.random.Generator, step: float) -> TimeSeries:
        shortest = 8 if self.intersample == "bl" else 2 if self.periodic else 1
        length = int(rng.choice([shortest, shortest + 1, *rng.integers(shortest, 26, 4)]))
        steps = step * np.ones(length)
        if self.uneven:
            steps *= np.exp(0.4 * rng.normal(size=length))
            steps[rng.integers(length)] *= rng.choice([1.0, 1.0, 4.3])
        t = rng.choice([0.0, 1.7]) + np.cumsum(steps)
        if not self.uneven:
            t = t[0] + np.arange(length) * steps[0]
        u = None
        if self.n_inputs:
            kind = rng.choice(["noise", "sine", "step", "zero"], p=[0.4, 0.3, 0.2, 0.1])
            phase = rng.uniform(0, 6, self.n_inputs) + t[:, None] * rng.uniform(1, 8, self.n_inputs)
            shapes = {"sine": np.sin(phase), "noise": rng.normal(size=phase.shape), "zero": 0.0 * phase}
            shapes["step"] = (np.arange(length) >= length // 2)[:, None] * rng.normal(size=self.n_inputs)
            u = 0.8 * shapes[str(kind)]
        return TimeSeries(t, u, intersample=self.intersample, periodic=self.periodic)

    def input_at(self, record: TimeSeries, k: int, fraction: float, derivative: int) -> np.ndarray:
        """The input inside the interval after sample k; held and linear ones from their definition."""
        if not self.n_inputs or self.intersample == "bl":
            return record.input_at(k, fraction, derivative)
        u, last = record.input_matrix, len(record) - 1
        if self.intersample == "zoh":
            return u[k] if derivative == 0 else np.zeros(self.n_inputs)
        slope = (u[min(k + 1, last)] - u[min(k, max(last - 1, 0))]) / (record.dt[min(k, last - 1)] if last else 1.0)
        if derivative == 0:
            return u[k] if k == last else u[k] + fraction * (u[k + 1] - u[k])
        return slope if derivative == 1 else np.zeros(self.n_inputs)

    def substeps_before(self, record: TimeSeries, k: int) -> Iterator[tuple[float, float, np.ndarray]]:
        """Length, time and input of each substep that leads to sample k."""
        if k == 0:
            return
        count = self.substeps
        if not record.uniform:
            count = max(self.substeps, math.ceil(self.substeps * record.dt[k - 1] / float(np.median(record.dt)) - 1e-6))
        span = record.dt[k - 1]
        for i in range(1, count + 1):
            f = i / count
            time = record.t[k - 1] + f * (record.t[k] - record.t[k - 1])
            yield span / count, time, self.input_at(record, k - 1, f, 0)


def _total(values: Sequence[Any]) -> Any:
    return sum(values[1:], start=values[0])


def _chains(n: int, followers: dict[int, int]) -> tuple[tuple[int, ...], ...]:
    chains = []
    for first in sorted(set(range(n)) - set(followers.values())):
        chain = [first]
        while chain[-1] in followers:
            chain.append(followers[chain[-1]])
        chains.append(tuple(chain))
    return tuple(chains)


def structure(seed: int, components: int = COMPONENTS) -> Structure:
    """The random structure of a seed."""
    rng = np.random.default_rng([seed, 7])
    while True:
        parts = [int(k) for k in rng.choice([1, 2, 2, 3], size=rng.integers(1, 4))]
        n, chains, linear = sum(parts), rng.random() > 0.15, rng.random() > 0.25
        order = int(rng.integers(1, 6))
        count = len(parts) if chains else n
        if n <= 4 and order >= (max(parts) if chains else 1) and count * (order + 1) <= components:
            break
    # Components of a chain anywhere among the states.
    places, followers, magnitudes = [int(i) for i in rng.permutation(n)], {}, []

    def new(magnitude: float) -> int:
        magnitudes.append(magnitude)
        return len(magnitudes) - 1

    n_inputs, terms = int(rng.choice([0, 1, 1, 2])), [()] * n
    rough = rng.random() < 0.4
    shapes = [s for s in SHAPES if rough or s not in ROUGH]

    def random_term(groups: Sequence[str], size: float) -> Term:
        factors = []
        for _ in range(int(rng.choice([1, 1, 2]))):
            group = str(rng.choice(groups))
            width = {"t": 1, "x": n, "dx": n, "u": n_inputs}[group]
            kind = str(rng.choice(shapes)) if group == "x" else str(rng.choice(["linear", "sin", "tanh"]))
            kind = "cos" if group == "t" else kind
            factors.append((kind, group, int(rng.integers(width))))
        return Term(new(size), tuple(factors))

    sources = ["x", "x", "x", *(["u"] if n_inputs else []), *(["t"] if rng.random() < 0.2 else [])]
    for size in parts:
        chain, places = places[:size], places[size:]
        followers.update(dict(pairwise(chain)))
        # A stable linear part, slow beside the sampling, and whatever else.
        w = rng.uniform(1.0, 5.0)
        own = {1: [w], 2: [w * w, 0.5 * w], 3: [w**3, 2.5 * w * w, 2.0 * w]}[size]
        body = [Term(new(-a), (("linear", "x", i),)) for a, i in zip(own, chain, strict=True)]
        body += [random_term(sources, float(rng.normal() * own[0] * 0.4)) for _ in range(rng.integers(0, 3))]
        if n_inputs and rng.random() < 0.7:
            body.append(Term(new(own[0]), (("linear", "u", int(rng.integers(n_inputs))),)))
        terms[chain[-1]] = tuple(body)
    seen = ["x", "x", "dx", *(["u"] if n_inputs else [])]
    outputs = []
    for _ in range(rng.integers(1, 4)):
        simple = Term(new(1.0), (("linear", str(rng.choice(["x", "x", "dx"])), int(rng.integers(n))),))
        outputs.append((simple, *(random_term(seen, 0.3) for _ in range(rng.integers(0, 2)))))
    intersample = str(rng.choice(["zoh", "foh", "bl"]))
    uneven = rng.random() < 0.35
    return Structure(
        seed=seed,
        n_states=n,
        n_inputs=n_inputs,
        followers=followers,
        chains=bool(chains),
        terms=tuple(terms),
        outputs=tuple(outputs),
        magnitudes=tuple(magnitudes),
        order=order,
        linear=bool(linear),
        block=bool(rng.random() < 0.25),
        diffusion=str(rng.choice(["mle", "fixed", "dynamic"])),
        free=tuple(i for i in range(n) if rng.random() < 0.3) if rng.random() < 0.4 else (),
        substeps=int(rng.integers(1, 4)),
        intersample=intersample,
        periodic=bool(not uneven and rng.random() < 0.2),
        uneven=bool(uneven),
        n_records=int(rng.choice([1, 1, 1, 2, 3])),
    )
