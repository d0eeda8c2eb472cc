"""Draws around a mode by independent proposals: adaptive importance sampling, then a sequential run's last stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.compat import seeds_per_chain
from pm_sysid.sampling.smc.evidence import importance
from pm_sysid.sampling.smc.ibis import IBIS, FinishedChain
from pm_sysid.sampling.smc.moves import Moves
from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import effective_size, normalised
from pm_sysid.sampling.smc.stages import stages

#: Weighted draws of a round, most rounds, and the effective share of the draws with which they end.
CLOUD, ROUNDS, ENOUGH = 4000, 6, 0.4
#: Independent moves of each draw, and most steps along differences.
MOVES, FEW_WALKS = 8, 5
#: Weights are tempered until the effective draws are this many times the unknowns, so that a proposal follows no handful.
FOLLOWED = 20


def sample_around_mode(
    point: np.ndarray,
    covariance: np.ndarray,
    draws: int,
    *,
    model: pm.Model,
    chains: int,
    random_seed: Any,
    progressbar: bool = True,
) -> xr.DataTree:
    """Draw from a posterior with one mode, by proposals that do not depend on where a chain is.

    Each chain begins with draws of a t distribution with the curvature of the mode, weights them, fits a mixture of t
    distributions and draws again, until the weights are even. The rest is the last stage of :func:`sample_ibis`: Markov chains
    over fresh proposals, and the evidence. All of it runs in batches without gradients.

    Parameters
    ----------
    point, covariance : numpy.ndarray, shapes (d,) and (d, d)
        The mode in unconstrained space, and the inverse of the negative Hessian there.
    draws : int
        Draws of each chain.
    model : pm.Model
    chains : int
        Chains with random numbers of their own, from the first proposal on.
    random_seed : int
    progressbar : bool, default True

    Returns
    -------
    xarray.DataTree
        As :func:`sample_ibis` returns it, with one stage. It is to be believed where the proposals fit (``proposal_ess``,
        ``pareto_k``) and the chains agree, and the mode has the posterior's whole mass.

    Notes
    -----
    Source: Cappé, Guillin, Marin and Robert (2004), Population Monte Carlo, Journal of Computational and Graphical Statistics
    13, 907-929.
    """
    # Every draw makes moves of its own, so that it depends on few others. Where proposals do not fit, particles walk: a few
    # steps only, since the result is not to be believed in any case.
    moves = Moves("plain", steps=MOVES, most_walks=FEW_WALKS)
    kernel = IBIS(draws, model=model, random_seed=random_seed, moves=moves)
    finished = []
    for seed in seeds_per_chain(random_seed, chains):
        rng = np.random.default_rng(seed)
        x, log_weights = _cloud(kernel, Mixture(np.ones(1), point[None], np.linalg.cholesky(covariance)[None], 3.0), rng)
        kernel.state = kernel.sequential.rejoin(x, log_weights, rng)
        row = {**kernel.sample_stats(), "log_product": np.nan, "log_product_se": np.nan}
        finished.append(FinishedChain(kernel.state.particles.x, [row]))
    idata: xr.DataTree = pm.sample_smc(
        draws,
        kernel=lambda **settings: kernel.handing_over(iter(finished)),
        model=model,
        chains=chains,
        cores=1,
        random_seed=random_seed,
        progressbar=progressbar,
        compute_convergence_checks=False,
    )
    idata["sample_stats"] = xr.DataTree(stages(idata))
    return idata


def _cloud(kernel: IBIS, proposal: Mixture, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws (CLOUD, d) of a proposal that has been fitted to weighted draws before, and their log weights."""
    target = kernel.sequential.target
    best: tuple[np.ndarray, np.ndarray, float] | None = None
    for _ in range(ROUNDS):
        x = proposal.draw(CLOUD, rng)
        log_weights = target.log_prior(x)
        log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
        possible = log_weights > -np.inf
        log_weights[possible] += target.log_likelihood(x[possible])
        log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights) - proposal.logpdf(x)
        efficiency = importance(log_weights).efficiency
        if best is None or efficiency > best[2]:
            best = x, log_weights, efficiency
        if efficiency >= ENOUGH:
            break
        tempered = log_weights
        while effective_size(tempered) < FOLLOWED * target.size and np.ptp(tempered[tempered > -np.inf]) > 0:
            tempered = tempered / 2
        proposal = Mixture.fit(x, normalised(tempered), proposal.freedom, rng)
    assert best is not None
    return best[:2]
