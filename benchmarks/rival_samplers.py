"""Sequential samplers of other packages on a PyMC model: `particles` over the batched likelihood here, `blackjax` by JAX.

Both temper: the likelihood of the whole record is taken in by powers of it. `particles` has the settings of its tutorial;
`blackjax` makes 20 steps of a random walk with the covariance of the particles in each stage. Both have as many particles and
chains as ``sample_ibis`` gets in ``problems.py``, and begin with the same draws of the prior.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid

PARTICLES, CHAINS = 1000, 2


def result(model: pm.Model, chains: list[np.ndarray], log_evidences: list[float], evaluations: int) -> xr.DataTree:
    """Particles (N, d) of each chain in unconstrained space, and log evidences, as PyMC's sequential sampler returns them."""
    target, rng = sid.Target(model), np.random.default_rng(0)
    values = [target.constrained(rng.permutation(rows)) for rows in chains]  # copies of one particle stand together
    posterior = {n: np.stack([v[n] for v in values]) for n in values[0]}
    dims = {n: ["chain", "draw", *(f"{n}_dim_{k}" for k in range(v.ndim - 2))] for n, v in posterior.items()}
    statistics = {
        "log_marginal_likelihood": (("chain", "stage"), np.array(log_evidences)[:, None]),
        "evaluations": (("chain", "stage"), np.full((len(chains), 1), evaluations * target.n_samples / len(chains))),
        "time_index": (("chain", "stage"), np.full((len(chains), 1), target.n_samples)),
    }
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({n: (dims[n], v) for n, v in posterior.items()}),
            "sample_stats": xr.Dataset(statistics),
        }
    )


def by_particles(model: pm.Model, seed: int) -> xr.DataTree:
    """Waste-free adaptive tempering (Dau and Chopin 2022) of the package `particles`."""
    import particles
    from particles import smc_samplers as ssp

    vars(np)["float"] = float  # what the package still calls it
    target = sid.Target(model)

    def rows(theta: Any) -> np.ndarray:
        return np.column_stack([theta[label] for label in target.labels])

    class Prior:
        """Draws and log density, as the package wants them."""

        def rvs(self, size: int) -> np.ndarray:
            drawn = np.empty(size, dtype=[(label, float) for label in target.labels])
            for label, column in zip(target.labels, target.draw_prior(size, seed_of_chain).T, strict=True):
                drawn[label] = column
            return drawn

        def logpdf(self, theta: Any) -> np.ndarray:
            return target.log_prior(rows(theta))

    class Posterior(ssp.StaticModel):  # type: ignore[misc]
        evaluations = 0

        def loglik(self, theta: Any, t: Any = None) -> np.ndarray:
            Posterior.evaluations += len(theta)
            return np.nan_to_num(target.log_likelihood(rows(theta)), nan=-np.inf)

    chains, evidences = [], []
    for chain in range(CHAINS):
        seed_of_chain = CHAINS * seed + chain
        np.random.seed(seed_of_chain)  # noqa: NPY002  (the package draws from numpy's global generator)
        tempered = ssp.AdaptiveTempering(Posterior(data=[0.0], prior=Prior()), wastefree=True, len_chain=20)
        algorithm = particles.SMC(fk=tempered, N=PARTICLES // 20, verbose=False)
        algorithm.run()
        drawn = np.random.default_rng(seed_of_chain).choice(len(algorithm.W), PARTICLES, p=algorithm.W)
        chains.append(rows(algorithm.X.theta)[drawn])
        evidences.append(float(algorithm.logLt))
    return result(model, chains, evidences, Posterior.evaluations)


def by_blackjax(model: pm.Model, seed: int, moves: int = 20) -> xr.DataTree:
    """Adaptive tempering of `blackjax`: random walks with the particles' covariance, half of them effective."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.mcmc import random_walk
    from blackjax.smc import adaptive_tempered, extend_params, resampling
    from pymc.sampling.jax import get_jaxified_graph

    jax.config.update("jax_enable_x64", True)
    target = sid.Target(model)
    names = [v.name for v in model.value_vars]
    shapes = [np.shape(v) for v in model.initial_point().values()]
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    graphs = [
        model.logp(vars=[*model.free_RVs, *model.potentials]),
        sum(t.sum() for t in model.logp(vars=model.observed_RVs, sum=False)),
    ]
    prior, likelihood = (get_jaxified_graph(inputs=model.value_vars, outputs=[g]) for g in graphs)
    assert names == list(model.initial_point())

    def split(x: Any) -> list[Any]:
        return [part.reshape(s) for part, s in zip(jnp.split(x, cuts), shapes, strict=True)]

    def possible(value: Any) -> Any:
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def step(key: Any, state: Any, log_density: Any, root: Any) -> Any:
        return random_walk.build_additive_step()(key, state, log_density, random_walk.normal(root))

    kernel = jax.jit(
        adaptive_tempered.build_kernel(
            lambda x: possible(prior(*split(x))[0]),
            lambda x: possible(likelihood(*split(x))[0]),
            step,
            blackjax.additive_step_random_walk.init,
            resampling.systematic,
            0.5,
        ),
        static_argnums=2,
    )
    chains, evidences, stages = [], [], 0
    for chain in range(CHAINS):
        key, total = jax.random.key(CHAINS * seed + chain), 0.0
        start = target.draw_prior(PARTICLES, CHAINS * seed + chain)
        state = adaptive_tempered.init(jnp.asarray(start))
        finished = False
        while not finished:
            finished = bool(state.tempering_param >= 1)  # the last weights are taken in by moves of the whole posterior
            key, used = jax.random.split(key)
            x = np.asarray(state.particles)
            spread = np.atleast_2d(np.cov(x, rowvar=False, aweights=np.asarray(state.weights)))
            root = np.linalg.cholesky(spread + 1e-12 * np.eye(len(spread))) * 2.38 / np.sqrt(len(spread))
            state, info = kernel(used, state, moves, extend_params({"root": jnp.asarray(root)}))
            total += float(info.log_likelihood_increment)
            stages += 1
        chains.append(np.asarray(state.particles))
        evidences.append(total)
    return result(model, chains, evidences, stages * PARTICLES * (moves + 2))
