"""Evidence on real difficulty: piecewise-linear maps of two dampers, many seeds beside an independent number.

The maps, priors and records (a simulated shock absorber; with ``mr_`` before the name of the map the measured
magnetorheological damper, which needs ``PM_SYSID_DATA``) are those of ``examples/piecewise_linear.py``. Each run is
``sid.sample_ibis`` with a thousand particles in one chain, or in four. The number beside it, :func:`reference`, shares nothing
with the package: a likelihood in NumPy, particles that go from the prior to the posterior while the likelihood is tempered, and
importance weights of draws from kernels around them (population Monte Carlo, Cappé et al. 2004).

A run is right if its log evidence is within four of its errors and 0.05 of that number.

Run: ``uv run benchmarks/evidence.py [MAP:SAMPLES:CHAINS ...]``; ``--seeds N`` (default 10),
``--references`` for the independent numbers alone. Results are kept after each run; runs that are in the file are not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.sampling.smc.stages import final

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "evidence.json"
CASES = ("trilinear:1500", "trilinear:5000", "quadlinear:1500", "quadlinear:1500:4")
#: The independent number: tempered particles and their steps at each level; draws, kernels and counted rounds of the weights.
PARTICLES, STEPS, DRAWS, KERNELS, ROUNDS = 4000, 20, 20_000, 400, 10
#: Distance below which corners are close.
CLOSE = 0.06


def example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("piecewise_linear", HERE.parent / "examples" / "piecewise_linear.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the independent number ------------------------------------------------------------------------------------------------


class Map:
    """Posterior of a map in NumPy: logarithms of slopes ``c0, c1, ...``, corners, offset, logarithm of the noise.

    ``part`` is how many of the corners have to be left of the origin, and whether two have to be close (default: any).
    """

    def __init__(self, v: np.ndarray, f: np.ndarray, regions: int, part: tuple[int, bool] | None = None) -> None:
        self.v, self.f, self.regions, self.part = v, f, regions, part
        scale = np.ptp(f) / np.ptp(v)
        self.slopes = np.log(scale / 30), np.log(scale * 30)
        self.corners = float(v.min()), float(v.max())
        self.offset, self.noise = 0.1 * np.ptp(v), np.log(0.1 * np.std(f))

    def unconstrained_draws(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws of the prior before the constraints."""
        columns = [rng.uniform(*self.slopes, (n, self.regions)), rng.uniform(*self.corners, (n, self.regions - 1))]
        return np.concatenate([*columns, rng.normal(0, self.offset, (n, 1)), rng.normal(self.noise, 1, (n, 1))], axis=1)

    def prior_draws(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws that obey the constraints."""
        found = np.empty((0, 2 * self.regions + 1))
        while len(found) < n:
            q = self.unconstrained_draws(n, rng)
            found = np.concatenate([found, q[self.allowed(q)]])
        return found[:n]

    def by_region(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes from left to right, and corners; the first slope belongs to the region of the origin."""
        k = self.regions
        slopes, corners = np.exp(q[:, :k]), q[:, k : 2 * k - 1]
        left = np.sum(corners <= 0, axis=1)
        order = np.array([[*range(1, m + 1), 0, *range(m + 1, k)] for m in range(k)])[left]
        return np.take_along_axis(slopes, order, axis=1), corners

    def allowed(self, q: np.ndarray) -> np.ndarray:
        """Ordered corners, and neighbouring slopes that differ by a twentieth."""
        s, d = self.by_region(q)
        apart = np.abs(np.diff(s)) >= 0.05 * np.maximum(s[:, 1:], s[:, :-1])
        good = np.all(np.diff(d) > 0, axis=1) & np.all(apart, axis=1)
        if self.part is not None:
            good &= (np.sum(d <= 0, axis=1) == self.part[0]) & (np.any(np.diff(d) < CLOSE, axis=1) == self.part[1])
        return good

    def log_prior(self, q: np.ndarray) -> np.ndarray:
        """Density before the constraints are made part of it: not normalised."""
        k = self.regions
        inside = np.all((q[:, :k] > self.slopes[0]) & (q[:, :k] < self.slopes[1]), axis=1) & self.allowed(q)
        inside &= np.all((q[:, k : 2 * k - 1] > self.corners[0]) & (q[:, k : 2 * k - 1] < self.corners[1]), axis=1)
        density = norm.logpdf(q[:, -2], 0, self.offset) + norm.logpdf(q[:, -1], self.noise, 1)
        density -= k * np.log(self.slopes[1] - self.slopes[0]) + (k - 1) * np.log(self.corners[1] - self.corners[0])
        return np.where(inside, density, -np.inf)

    def log_density(self, q: np.ndarray) -> np.ndarray:
        """Prior times likelihood."""
        prior = self.log_prior(q)
        fine = np.isfinite(prior)
        prior[fine] += self.log_likelihood(q[fine])
        return prior

    def log_likelihood(self, q: np.ndarray) -> np.ndarray:
        """Of all samples."""
        squares = np.empty(len(q))
        for begin in range(0, len(q), 256):
            part = q[begin : begin + 256]
            s, d = self.by_region(part)
            x = self.v - part[:, -2:-1]
            force, at_zero = s[:, :1] * x, np.zeros((len(part), 1))
            for i in range(self.regions - 1):
                bend = s[:, i + 1 : i + 2] - s[:, i : i + 1]
                force += bend * np.maximum(x - d[:, i : i + 1], 0)
                at_zero += bend * np.maximum(-d[:, i : i + 1], 0)
            squares[begin : begin + 256] = np.sum((self.f - force + at_zero) ** 2, axis=1)
        return -0.5 * squares * np.exp(-2 * q[:, -1]) - len(self.f) * (q[:, -1] + 0.5 * np.log(2 * np.pi))


class Kernels(NamedTuple):
    """Mixture of t distributions with five degrees of freedom, equal weights."""

    centres: np.ndarray
    roots: np.ndarray

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws."""
        which = rng.integers(len(self.centres), size=n)
        z = rng.standard_normal((n, self.centres.shape[1])) / np.sqrt(rng.chisquare(5, (n, 1)) / 5)
        return self.centres[which] + np.einsum("nij,nj->ni", self.roots[which], z)

    def logpdf(self, q: np.ndarray) -> np.ndarray:
        """Log density."""
        size = q.shape[1]
        constant = gammaln((5 + size) / 2) - gammaln(2.5) - size / 2 * np.log(5 * np.pi) - np.log(len(self.centres))
        each = np.empty((len(self.centres), len(q)))
        for row, centre, root in zip(each, self.centres, self.roots, strict=True):
            z = (q - centre) @ np.linalg.inv(root).T
            row[:] = constant - np.log(np.diag(root)).sum() - (5 + size) / 2 * np.log1p(np.sum(z**2, axis=1) / 5)
        return logsumexp(each, axis=0)


def kernels(q: np.ndarray, rng: np.random.Generator, near: float = 0.1) -> Kernels:
    """Kernels at some of equally weighted draws, each as wide as the draws near it lie apart."""
    floor = 1e-2 * np.cov(q.T) + 1e-12 * np.eye(q.shape[1])  # where draws are copies of each other
    metric = np.linalg.cholesky(np.linalg.inv(floor))
    z, centres = q @ metric, rng.choice(len(q), KERNELS, replace=False)
    roots = []
    for centre in centres:
        nearest = np.argpartition(np.sum((z - z[centre]) ** 2, axis=1), int(near * len(q)))[: int(near * len(q))]
        roots.append(np.linalg.cholesky(np.cov(q[nearest].T) + floor))
    return Kernels(q[centres], np.array(roots))


def effective(log_w: np.ndarray) -> float:
    """Effective number of weighted draws."""
    return float(np.exp(2 * logsumexp(log_w) - logsumexp(2 * log_w)))


def reference(v: np.ndarray, f: np.ndarray, regions: int, seed: int = 0) -> dict[str, Any]:
    """Log evidence, its error by weights and by rounds, and the smallest effective number of draws behind a part that counts.

    With a corner to spare (the record has two) the posterior is worked out in parts, by the number of corners left of the
    origin and by whether two are close together: particles for all of them would lose some, since a spare corner may lie
    nearly anywhere, and where it rounds another one its place is narrow.
    """
    rng = np.random.default_rng(seed)
    whole = Map(v, f, regions)
    # The constraints cut the prior, whose density is that of what is left.
    mass = float(np.mean(whole.allowed(whole.unconstrained_draws(1_000_000, rng))))
    names = [(left, close) for left in range(regions) for close in (False, True)] if regions > 3 else [None]
    parts = [weighed(Map(v, f, regions, name), rng) - np.log(mass) for name in names]
    evidences = np.array([logsumexp(part) - np.log(part.size) for part in parts])
    total = logsumexp(evidences)
    shares = np.exp(evidences - total)
    sizes = np.array([effective(part.ravel()) for part in parts])
    spreads = [np.std(np.exp(logsumexp(part, axis=1) - np.log(DRAWS) - total), ddof=1) / np.sqrt(ROUNDS) for part in parts]
    return {
        "log_evidence": float(total),
        "error": float(np.sqrt(np.sum(shares**2 / sizes))),
        "spread": float(np.linalg.norm(spreads)),
        "effective": float(sizes[shares > 0.01].min()),
        "shares": {_words(name): float(share) for name, share in zip(names, shares, strict=True)},
    }


def _words(part: tuple[int, bool] | None) -> str:
    return "all" if part is None else f"{part[0]} left{', two close' * part[1]}"


def weighed(posterior: Map, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of importance weights, without the mass of the prior: rows of draws, each of a proposal of its own."""
    q, rounds = tempered(posterior, rng), []
    for _ in range(2 * ROUNDS):
        proposal = kernels(q, rng)
        q = proposal.draw(DRAWS, rng)
        log_w = posterior.log_density(q) - proposal.logpdf(q)
        rounds.append(log_w)
        q = q[rng.choice(DRAWS, DRAWS, p=np.exp(log_w - logsumexp(log_w)))]
    return np.array(rounds[ROUNDS:])  # the first rounds still adapt


def tempered(posterior: Map, rng: np.random.Generator) -> np.ndarray:
    """Draws near the posterior: particles from the prior, moved along differences of each other while the likelihood rises."""
    q = posterior.prior_draws(PARTICLES, rng)
    prior, likelihood, power = posterior.log_prior(q), posterior.log_likelihood(q), 0.0
    while power < 1:
        step = _step(likelihood, 1 - power)
        power += step
        picked = rng.choice(PARTICLES, PARTICLES, p=np.exp(step * likelihood - logsumexp(step * likelihood)))
        q, prior, likelihood = q[picked], prior[picked], likelihood[picked]
        frozen = q.copy()
        for _ in range(STEPS):
            first, second = frozen[rng.integers(PARTICLES, size=(2, PARTICLES))]
            # A step as long as the difference leads from one region to another.
            length = np.where(rng.random(PARTICLES) < 0.1, 1.0, rng.uniform(0.1, 1.0, PARTICLES))
            new = q + length[:, None] * (first - second) + 1e-6 * frozen.std(axis=0) * rng.standard_normal(q.shape)
            new_prior, new_likelihood = posterior.log_prior(new), np.full(PARTICLES, -np.inf)
            fine = np.isfinite(new_prior)
            new_likelihood[fine] = posterior.log_likelihood(new[fine])
            gain = np.where(fine, new_prior - prior + power * (new_likelihood - likelihood), -np.inf)
            taken = np.log(rng.random(PARTICLES)) < gain
            q[taken], prior[taken], likelihood[taken] = new[taken], new_prior[taken], new_likelihood[taken]
    return q


def _step(likelihood: np.ndarray, most: float) -> float:
    """By how much the power of the likelihood can rise so that half of the particles stay effective."""
    if effective(most * likelihood) >= PARTICLES / 2:
        return most
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle * likelihood) >= PARTICLES / 2 else (low, middle)
    return low


# -- the runs --------------------------------------------------------------------------------------------------------------


def run(name: str, train: tuple[np.ndarray, np.ndarray], chains: int, seed: int, module: ModuleType) -> dict[str, Any]:
    """One posterior."""
    model, begun = module.maps(train, likelihood=True)[name], time.perf_counter()
    idata = sid.sample_ibis(1000, model=model, chains=chains, cores=1, random_seed=seed, progressbar=False)
    found, statistics = sid.log_evidence(idata), sid.stages(idata)
    product = float(final(statistics)["log_product"].mean())  # not of chains that went on together
    return {
        "seed": seed,
        "log_evidence": found.value,
        "error": float(found.error),
        "doubt": found.doubt,
        "product": product if np.isfinite(product) else None,
        "runs": float(statistics["evaluations"].max("stage").sum()) / len(train[0]),
        "seconds": time.perf_counter() - begun,
    }


def right(found: dict[str, Any], known: dict[str, float]) -> bool:
    """Whether a run is within four errors and 0.05 of the independent number."""
    return abs(found["log_evidence"] - known["log_evidence"]) < 4 * np.hypot(found["error"], known["error"]) + 0.05


def _away(value: float | None, known: dict[str, Any]) -> str:
    return "none" if value is None else f"{value - known['log_evidence']:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--references", action="store_true", help="the independent numbers only")
    options = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    module = example()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for case in options.cases or CASES:
        name, samples, chains = [*case.split(":"), "1"][:3]
        measured = name.startswith("mr_")
        record, _ = module.mr_damper(os.environ["PM_SYSID_DATA"]) if measured else module.shock_absorber()
        train = record[0][: int(samples)], record[1][: int(samples)]
        kept = results.setdefault(case, {"reference": None, "runs": []})
        seeds = [] if options.references else [s for s in range(options.seeds) if s not in {r["seed"] for r in kept["runs"]}]
        for seed in seeds:
            kept["runs"].append(run(name.removeprefix("mr_"), train, int(chains), seed, module))
            print(f"{case} {kept['runs'][-1]}", flush=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        same = [row["reference"] for key, row in results.items() if key.split(":")[:2] == [name, samples] and row["reference"]]
        if kept["reference"] is None:
            kept["reference"] = same[0] if same else reference(*train, regions=module.NAMES.index(name.removeprefix("mr_")) + 1)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        known = kept["reference"]
        print(
            f"{case}: independent log evidence {known['log_evidence']:.3f} +- {known['error']:.3f} by weights, "
            f"{known['spread']:.3f} by rounds, {known['effective']:.0f} effective draws"
        )
        for found in kept["runs"]:
            print(
                f"  seed {found['seed']}: {found['log_evidence'] - known['log_evidence']:+.3f} +- {found['error']:.3f}, "
                f"product {_away(found['product'], known)}, {'right' if right(found, known) else 'wrong'}, "
                f"{found['runs']:.0f} runs, {found['seconds']:.0f} s. {found['doubt']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
