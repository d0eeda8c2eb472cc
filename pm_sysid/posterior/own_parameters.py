"""How likely the record of a specimen is given what all specimens share: its own parameters integrated out."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
import scipy

from pm_sysid.likelihood.coordinates import checked, for_each_particle
from pm_sysid.likelihood.target import Target
from pm_sysid.progress import announced
from pm_sysid.recurrence.functions import compiled

#: Proposals have the tails of a t distribution of this many degrees of freedom, and are wider than the posterior by a factor.
FREEDOM, WIDER = 6.0, 1.2
#: Newton steps towards the mode given what is shared, and the least curvature in units of the spread over all draws.
NEWTON, LEAST = 4, 0.1
#: Effective number of values below which an average is rough, and the share of draws that may be so.
FEW, MANY = 10.0, 0.1
#: Change of a log-density, as a share of its size, that is rounding.
ROUNDING = 1e-9


class Integrated(NamedTuple):
    """Log-likelihood of each record given what is shared, and the effective number of values behind it, (B, R)."""

    log_likelihood: np.ndarray
    effective: np.ndarray


class OwnParameters:
    """Parameters of a model of which each record has its own: free variables with an entry for each record.

    An entry may enter nothing but the likelihood of its record, its own prior, and that of other entries of the same record.

    Parameters
    ----------
    target : Target
        Of a model with one filter.
    edges : ndarray, shape (R + 1,)
        First sample of each record, and the number of samples.
    at : ndarray, shape (d,)
        A particle at which it is tried which entries are a record's own.

    Raises
    ------
    ValueError
        If no variable has an entry of its own for each record.
    """

    def __init__(self, target: Target, edges: np.ndarray, at: np.ndarray) -> None:
        self.target, self.edges, self.n_records = target, edges, len(edges) - 1
        model, n = target.model, self.n_records
        assert model is not None
        first, columns, candidates = 0, {}, []
        for value in model.value_vars:
            shape = np.shape(target.coordinates.point[value.name])
            size = int(np.prod(shape))
            if shape[:1] == (n,):
                rv = model.values_to_rvs[value]
                candidates.append(rv)
                columns[rv] = first + np.arange(size).reshape(n, -1)
            first += size
        #: The variables, and the columns (R, m) of a particle that are each record's own.
        self.variables = [rv for rv in candidates if self._alone([rv], columns, at)]
        several = len(self.variables) > 1
        if not self.variables or (several and not self._alone(self.variables, columns, at)):
            raise ValueError(
                f"no free variable has an entry for each of the {n} records that enters this record alone, so that nothing can "
                "be integrated out; leave out integrate (each record then has the likelihood of the draw)."
            )
        self.columns = np.concatenate([columns[rv] for rv in self.variables], axis=1)

    def _alone(self, variables: list[Any], columns: dict[Any, np.ndarray], at: np.ndarray) -> bool:
        """Whether moving the entries of one record changes only its likelihood and their prior."""
        prior = self._prior_of(variables)
        if prior is None:
            return False
        moved = np.tile(at, (self.n_records + 1, 1))
        for r in range(self.n_records):
            moved[r + 1, np.concatenate([columns[rv][r] for rv in variables])] += 0.05
        with np.errstate(all="ignore"):
            own = prior(moved)
            likelihood = self.target.log_likelihood(moved, edges=self.edges)
            rest = self.target.log_prior(moved) - own.sum(axis=1)
        others = ~np.eye(self.n_records, dtype=bool)
        scale = ROUNDING * (1 + np.abs(self.target.log_prior(moved[:1])) + np.abs(own[:1]).sum())
        same = np.abs(rest - rest[0]) <= scale
        for values in (own, likelihood):
            change = np.abs(values[1:] - values[0])
            same = np.append(same, (change <= ROUNDING * (1 + np.abs(values[0])))[others])
        return bool(same.all())

    def _prior_of(self, variables: list[Any]) -> Any:
        """Function of particles (B, d): log prior (B, R) of each record's entries; None where it is not one a record."""
        model, particles = self.target.model, pt.dmatrix("particles")
        assert model is not None
        terms = model.logp(vars=variables, sum=False, jacobian=True)
        if any(term.type.ndim < 1 for term in terms):
            return None
        terms = [checked(term) for term in terms]
        batched = self.target.coordinates.vectorised(terms, particles)
        count, total = particles.shape[0], 0.0
        for term, many in zip(terms, batched, strict=True):
            full = for_each_particle(term.type.ndim, many, count)
            total = total + full.reshape((count, full.shape[1], -1)).sum(axis=2)
        function = compiled([particles], total, trust_input=True)

        def evaluate(rows: np.ndarray) -> np.ndarray:
            with np.errstate(all="ignore"):
                return np.asarray(function(np.ascontiguousarray(rows)))

        return evaluate if evaluate(np.zeros((1, self.target.size))).shape == (1, self.n_records) else None

    @cached_property
    def _prior(self) -> Any:
        return announced("prior of each specimen", lambda: self._prior_of(self.variables))

    def integrated(self, particles: np.ndarray, values: int, rng: np.random.Generator) -> Integrated:
        """Log-likelihood of each record given what is shared, for posterior draws (B, d).

        By importance sampling with ``values`` values for each draw, from normal distributions with wider tails around the mode
        given what this draw says of the shared parameters (:meth:`_modes`).
        """
        (B, R), m = (len(particles), self.n_records), self.columns.shape[1]
        middle, roots = self._modes(particles)
        constant = scipy.special.gammaln((FREEDOM + m) / 2) - scipy.special.gammaln(FREEDOM / 2)
        constant = constant - m / 2 * np.log(FREEDOM * np.pi) - np.linalg.slogdet(roots)[1]
        weights = np.empty((values, B, R))
        for k in range(values):
            mix = rng.chisquare(FREEDOM, (B, R, 1)) / FREEDOM
            unit = rng.standard_normal((B, R, m)) / np.sqrt(mix)
            tails = (FREEDOM + m) / 2 * np.log1p(np.sum(unit**2, axis=2) / FREEDOM)
            weights[k] = self._density(particles, middle + np.einsum("brij,brj->bri", roots, unit)) - constant + tails
        found = scipy.special.logsumexp(weights, axis=0) - np.log(values)
        effective = np.exp(2 * scipy.special.logsumexp(weights, axis=0) - scipy.special.logsumexp(2 * weights, axis=0))
        self._warn(effective)
        return Integrated(found, effective)

    def _density(self, particles: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Log-likelihood and log prior (B, R) of each record's entries ``own`` (B, R, m), beside what particles share."""
        moved = particles.copy()
        moved[:, self.columns] = own
        found = self.target.log_likelihood(moved, edges=self.edges) + self._prior(moved)
        return np.where(np.isnan(found), -np.inf, found)

    def _modes(self, particles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Modes (B, R, m) of the entries of each record given the shared parameters of each draw, and roots of covariances.

        A draw's own entries are one from the distribution sought. From there a few Newton steps with numerical derivatives are
        made, in units of the spread over all draws.
        """
        own = particles[:, self.columns]
        size = np.maximum(own.std(axis=0), 1e-8 * (1 + np.abs(own).max(axis=0)))
        m, x, h = own.shape[2], own.copy(), np.full(own.shape, 0.1)
        unit = np.eye(m)
        for _ in range(NEWTON):
            f = self._density(particles, x)
            up, down = (np.stack([self._density(particles, x + s * h * size * e) for e in unit], axis=2) for s in (1, -1))
            slope = (up - down) / (2 * h)
            bend = np.zeros((*own.shape, m))
            for i in range(m):
                bend[..., i, i] = (2 * f - up[..., i] - down[..., i]) / h[..., i] ** 2
                for j in range(i):
                    both = self._density(particles, x + h * size * (unit[i] + unit[j]))
                    bend[..., i, j] = bend[..., j, i] = (up[..., i] + up[..., j] - f - both) / (h[..., i] * h[..., j])
            bend = np.where(np.isfinite(bend).all(axis=(2, 3), keepdims=True), bend, unit)
            w, V = np.linalg.eigh(bend)
            w = np.maximum(w, LEAST)
            along = np.einsum("brji,brj->bri", V, np.where(np.isfinite(slope), slope, 0.0)) / w
            step = np.einsum("brij,brj->bri", V, along)
            x = x + size * step / np.maximum(np.abs(step).max(axis=2, keepdims=True), 1.0)
            h = np.clip(0.3 / np.sqrt(np.maximum(np.einsum("brii->bri", bend), LEAST)), 1e-4, 0.3)
        return x, WIDER * size[..., None] * V / np.sqrt(w)[..., None, :]

    def _warn(self, effective: np.ndarray) -> None:
        rough = np.mean(~(effective >= FEW), axis=0)
        if (rough > MANY).any():
            worst = int(np.argmax(rough))
            warnings.warn(
                f"the average over the own parameters of record {worst} rests on fewer than {FEW:g} effective values for "
                f"{100 * rough[worst]:.0f} % of the draws; give a larger integrate.",
                stacklevel=4,
            )
