"""References for the problems without an exact answer, by two methods that have to agree.

Two hundred Markov chains start around all modes that :func:`pm_sysid.find_mode` finds from the true parameters and from prior
draws, in shares by Laplace's approximation. They move along differences of each other's past (ter Braak and Vrugt 2008). A
mixture of t distributions is then fitted to them, and 40,000 draws of it, weighted, give moments and evidence. The two have in
common the log posterior and the ridges that lead away from the best mode (:mod:`pm_sysid.likelihood.ridges`): chains begin
there too, and a fifth of the weighted draws is made there, since neither finds a far tail of a curved posterior by itself.
Both move in the unconstrained space of the model; where positive unknowns reach down to zero (their logarithms have long tails
there, and curved ridges) these are in natural units. A reference counts where the weighted draws are worth a thousand and its
means and standard deviations are those of the chains.

Run: ``uv run benchmarks/references.py [names of problems]`` computes and saves them (``benchmarks/results/references.json``);
``problems.py`` takes them from there. The tanks need ``PM_SYSID_DATA``.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from problem_set import PROBLEMS, Problem
from scipy.special import logsumexp, softmax

import pm_sysid as sid
from pm_sysid.compat.arviz import array_stats
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.ridges import Ridges, ridges
from pm_sysid.sampling.smc.evidence import pareto_shape
from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import effective_size, systematic

RESULTS = Path(__file__).parent / "results" / "references.json"
#: Markov chains, the steps of each, how many of them count, and one of how many is kept.
CHAINS, STEPS, COUNTED, THIN = 200, 1500, 1000, 5
#: How many times as many steps chains take that mix slowly, and weighted draws there are, by problem.
LONGER = {"hes1": 12}
#: Share of the weighted draws that are made about points on ridges.
ALONG = 0.2
#: Draws of the mixture that are weighted, and how often it is fitted to them again.
DRAWS, ROUNDS = 40_000, 3
#: Positive unknowns that are taken in natural units, by problem.
NATURAL = {"pendulum": ("k", "c", "dry", "quadratic", "noise")}
#: Effective draws, and distance of the two methods in standard deviations, between which a reference counts.
ENOUGH, AGREED = 1000.0, 0.1


class Reference(NamedTuple):
    """What is known about a posterior by computation.

    ``point`` is the best mode (unconstrained space) and ``logp`` the log posterior density there, by which a stored reference
    is recognised; ``mean`` and ``sd`` are by free variable (of logarithms where the answer says so), from weighted draws that
    are worth ``ess``, ``pareto_k`` is the shape of their largest weights. Of the chains: ``chains_ess`` effective draws, R-hat,
    and the largest distance of a mean (in standard deviations) and of a standard deviation (as a logarithm) to those of the
    weighted draws.
    """

    point: list[float]
    logp: float
    modes: int
    mean: dict[str, Any]
    sd: dict[str, Any]
    log_evidence: float
    error: float
    ess: float
    pareto_k: float
    chains_ess: float
    chains_rhat: float
    mean_apart: float
    sd_apart: float
    seconds: float

    @property
    def counts(self) -> bool:
        """Whether the two methods agree."""
        return self.ess >= ENOUGH and max(self.mean_apart, self.sd_apart) <= AGREED


def known(problem: Problem) -> Reference:
    """The stored reference of a problem; computed and stored, if there is none for the model as it is."""
    found = stored().get(problem.name)
    if found is not None:
        reference = Reference(**found)
        target = sid.Target(problem.model)
        if np.isclose(float(density(target)(np.array([reference.point]))[0]), reference.logp, rtol=1e-6, atol=1e-4):
            return reference
        print(f"{problem.name}: the stored reference is of another model or record, and is computed again", flush=True)
    reference = compute(problem)
    save(problem.name, reference)
    return reference


def stored() -> dict[str, Any]:
    """References by the name of their problem."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def density(target: sid.Target) -> Callable[[np.ndarray], np.ndarray]:
    """Log posterior (B,) of points (B, d), up to the evidence."""

    def function(x: np.ndarray) -> np.ndarray:
        total = np.asarray(target.log_prior(x), dtype=float)
        total = np.where(np.isfinite(total), total, -np.inf)
        fine = np.isfinite(total)
        if fine.any():
            total[fine] += target.log_likelihood(x[fine])
        return np.where(np.isnan(total), -np.inf, total)

    return function


def compute(problem: Problem, seed: int = 0) -> Reference:
    """Posterior of a problem by chains and by weighted draws."""
    begun = time.perf_counter()
    rng = np.random.default_rng(seed)
    start = dict(problem.answer.truth) or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = sid.find_mode(problem.model, start=start, random_seed=seed, progressbar=False)
    target = sid.Target(problem.model)
    units = Units(problem.model, NATURAL.get(problem.name, ()))
    logp, longer = units.density(density(target)), LONGER.get(problem.name, 1)
    along = ridges(PosteriorFunctions(problem.model).descent_function(), mode.point, mode.covariance)
    kept = _chains(logp, _around(units.modes(mode), units, along, logp, rng), rng, longer)
    flat = kept.reshape(-1, kept.shape[2])
    proposal = _fitted(flat, np.zeros(len(flat)), units, along, rng)
    for repeat in range(ROUNDS):
        x = proposal.draw(longer * DRAWS, rng)
        log_w = logp(x) - proposal.logpdf(x)
        w = softmax(log_w)
        if repeat < ROUNDS - 1 and 1 / np.sum(w**2) > ENOUGH:
            proposal = _fitted(x, log_w, units, along, rng)
    ess = float(1 / np.sum(w**2))
    possible = log_w > -np.inf
    x, w = x[possible], w[possible]
    of_chains, of_draws = (problem.answer.judged(target.constrained(units.unconstrained(z))) for z in (flat, x))
    names = [rv.name for rv in problem.model.free_RVs]
    mean = {n: np.tensordot(w, of_draws[n], 1) for n in names}
    sd = {n: np.sqrt(np.tensordot(w, (of_draws[n] - mean[n]) ** 2, 1)) for n in names}
    allowed = _allowed(problem.model, rng) if problem.model.potentials else 1.0
    columns = [kept[:, :, k] for k in range(kept.shape[2])]
    return Reference(
        point=mode.point.tolist(),
        logp=float(density(target)(mode.point[None])[0]),
        modes=len(mode.modes),
        mean={n: v.tolist() for n, v in mean.items()},
        sd={n: v.tolist() for n, v in sd.items()},
        log_evidence=float(logsumexp(log_w) - np.log(len(log_w)) - np.log(allowed)),
        error=float(np.sqrt(max(1 / ess - 1 / len(log_w), 0.0))),
        ess=ess,
        pareto_k=pareto_shape(log_w),
        chains_ess=min(float(array_stats.ess(c, method="bulk")) for c in columns),
        chains_rhat=max(float(array_stats.rhat(c, method="rank")) for c in columns),
        mean_apart=max(float(np.max(np.abs(of_chains[n].mean(axis=0) - mean[n]) / sd[n])) for n in names),
        sd_apart=max(float(np.max(np.abs(np.log(of_chains[n].std(axis=0) / sd[n])))) for n in names),
        seconds=time.perf_counter() - begun,
    )


class Units:
    """Coordinates that the samplers move in: the model's unconstrained ones, without the logarithms of some variables."""

    def __init__(self, model: pm.Model, natural: Sequence[str]) -> None:
        shapes = model.eval_rv_shapes()
        sizes = [int(np.prod(shapes[rv.name], dtype=int)) for rv in model.free_RVs]
        self.logs = np.repeat([rv.name in natural for rv in model.free_RVs], sizes)

    def unconstrained(self, z: np.ndarray) -> np.ndarray:
        """Unconstrained points of possible ones (B, d) in these units."""
        x = z.copy()
        x[:, self.logs] = np.log(z[:, self.logs])
        return x

    def density(self, logp: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        """Log density in these units."""

        def function(z: np.ndarray) -> np.ndarray:
            total = np.full(len(z), -np.inf)
            possible = np.all(z[:, self.logs] > 0, axis=1)
            if possible.any():
                x = self.unconstrained(z[possible])
                total[possible] = logp(x) - x[:, self.logs].sum(axis=1)
            return total

        return function

    def modes(self, mode: sid.Mode) -> Mixture:
        """The modes by their shares, all with the curvature of the best one."""
        evidence = np.array([m.log_evidence for m in mode.modes])
        share = softmax(np.where(np.isfinite(evidence), evidence, np.nanmax(evidence)))
        points, root = np.array([m.point for m in mode.modes]), np.linalg.cholesky(mode.covariance)
        points[:, self.logs] = np.exp(points[:, self.logs])
        scale = np.where(self.logs, points[0], 1.0)
        return Mixture(share, points, np.repeat((scale[:, None] * root)[None], len(share), axis=0), 5.0)

    def with_ridges(self, mixture: Mixture, along: Ridges) -> Mixture:
        """A mixture with components about points on ridges."""
        if not len(along.points):
            return mixture
        points = np.where(self.logs, np.exp(along.points), along.points)
        scale = np.where(self.logs, points, 1.0)
        roots = np.linalg.cholesky(scale[:, :, None] * along.covariances * scale[:, None, :])
        return mixture._replace(
            shares=np.concatenate([(1 - ALONG) * mixture.shares, np.full(len(points), ALONG / len(points))]),
            means=np.concatenate([mixture.means, points]),
            roots=np.concatenate([mixture.roots, roots]),
        )


def _fitted(x: np.ndarray, log_w: np.ndarray, units: Units, along: Ridges, rng: np.random.Generator) -> Mixture:
    """Proposals that are fitted to weighted draws (B, d)."""
    fine = log_w > -np.inf
    x, w = x[fine], softmax(log_w[fine])
    if len(x) > DRAWS:  # more tell a mixture nothing, and cost gigabytes
        x, w = x[systematic(w, DRAWS, rng)], np.full(DRAWS, 1 / DRAWS)
    return units.with_ridges(Mixture.fit(x, w, 5.0, rng), along)


def _around(
    modes: Mixture,
    units: Units,
    along: Ridges,
    logp: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """Starts (CHAINS, d) of the chains: weighted draws of proposals that are fitted again."""
    proposal = units.with_ridges(modes, along)
    for _ in range(ROUNDS):
        x = proposal.draw(DRAWS // 8, rng)
        log_w = logp(x) - proposal.logpdf(x)
        # Tempered where few draws carry all, so that neither the next proposal nor the chains begin at a handful.
        while effective_size(log_w) < CHAINS:
            log_w = log_w / 1.5
        proposal = _fitted(x, log_w, units, along, rng)
    return x[systematic(softmax(log_w), CHAINS, rng)]


def _chains(logp: Callable[[np.ndarray], np.ndarray], x: np.ndarray, rng: np.random.Generator, longer: int) -> np.ndarray:
    """Chains (CHAINS, longer * COUNTED / THIN, d) that move by differences of the past states of all, which grow slowly."""
    n, d = x.shape
    value, archive, kept = logp(x), [x.copy()], []
    past = x.copy()
    for step in range(longer * STEPS):
        first, second = rng.integers(len(past), size=(2, n))
        # One step in ten has the full length of a difference, which leads from mode to mode.
        length = np.where(rng.random(n) < 0.1, 1.0, 2.38 / np.sqrt(2 * d) * rng.uniform(0.3, 1.2, n))[:, None]
        tried = x + length * (past[first] - past[second]) + 1e-6 * rng.standard_normal((n, d))
        found = logp(tried)
        with np.errstate(invalid="ignore"):
            better = np.log(rng.random(n)) < found - value
        x, value = np.where(better[:, None], tried, x), np.where(better, found, value)
        if step % THIN == 0:
            if step < longer * (STEPS - COUNTED):
                archive.append(x.copy())
                past = np.concatenate(archive[len(archive) // 2 :])
            else:
                kept.append(x.copy())
    return np.stack(kept, axis=1)


def _allowed(model: pm.Model, rng: np.random.Generator, draws: int = 1_000_000) -> float:
    """Share of the prior that the potentials leave."""
    free = pm.draw(list(model.free_RVs), draws=draws, random_seed=int(rng.integers(2**31)))
    coordinates = Coordinates(model)
    names = [rv.name for rv in model.free_RVs]
    return float(np.mean(np.exp(coordinates.potential(coordinates.unconstrained(dict(zip(names, free, strict=True)))))))


def save(name: str, reference: Reference) -> None:
    """Add a reference to the file, which other processes may write to."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        RESULTS.write_text(json.dumps(stored() | {name: reference._asdict()}, indent=1) + "\n")


def shown(problem: Problem, found: Reference) -> str:
    """A reference in words."""
    apart = f"means {found.mean_apart:.2f} sd apart, sds {100 * found.sd_apart:.0f} %"
    lines = [
        f"{problem.name}: log posterior {found.logp:.3f} at the best of {found.modes} modes, log evidence "
        f"{found.log_evidence:.3f} +- {found.error:.3f}; {found.ess:.0f} weighted draws effective (Pareto k "
        f"{found.pareto_k:.2f}), {found.chains_ess:.0f} of the chains (R-hat {found.chains_rhat:.3f}); {apart}; "
        f"{found.seconds:.0f} s" + ("" if found.counts else "  DOES NOT COUNT")
    ]
    for key, value in found.mean.items():
        other: Mapping[str, Any] = problem.answer.mean or problem.answer.truth
        lines.append(f"  {key:10s} {np.round(value, 4)} +- {np.round(found.sd[key], 4)}; known: {other.get(key, '')}")
    return "\n".join(lines)


def main() -> None:
    for name in sys.argv[1:] or PROBLEMS:
        problem = PROBLEMS[name]()
        if len(sys.argv) == 1 and problem.answer.log_evidence is not None:
            continue  # its answer is exact
        found = compute(problem)
        save(name, found)
        print(shown(problem, found), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)
    main()
