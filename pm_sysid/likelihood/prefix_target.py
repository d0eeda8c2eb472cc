"""One parameter vector at a time: the log-likelihood of the first samples of a record, compiled for a Markov chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.compat import join_nonshared_inputs, toposort
from pm_sysid.likelihood.coordinates import checked
from pm_sysid.likelihood.target import MIN_DIFFUSION_SAMPLES, Target, as_series
from pm_sysid.recurrence.functions import compiled
from pm_sysid.recurrence.op import Recurrence, substeps_by_run


class Evaluation(NamedTuple):
    """Log-density of a point given the first ``n`` samples, and given more of them, up to ``n + len(path) - 1``."""

    q: np.ndarray
    prior: float
    n: int
    path: np.ndarray
    diffusion_samples: int

    def likelihood(self, n: int) -> float:
        """Log-likelihood of the first ``n`` samples."""
        return float(self.path[n - self.n])

    def serves(self, q: np.ndarray, n: int, reach: int, diffusion_samples: int) -> bool:
        """Whether it holds the log-likelihood of this point for n to reach samples, with this calibration of diffusions."""
        known = self.n <= n and reach < self.n + len(self.path)
        return known and diffusion_samples == self.diffusion_samples and np.array_equal(q, self.q)


class Prefix:
    """Log prior and log-likelihood of the first n samples at one point, in unconstrained space.

    Parameters
    ----------
    model : pm.Model
        Model whose observed variables have (time,)-shaped log-likelihoods: ODE filters, or anything else of which Python
        sees the log-likelihood of each sample. One that is one number is taken in with the first sample.

    Attributes
    ----------
    n_samples : int
        Number of samples N.
    labels : list of str
        Name of each coordinate.

    Notes
    -----
    Filters and simulations run over the samples asked for and no further. A filter that calibrates its diffusion does so by
    ``N / 2^k`` samples, the largest such number that is at most that of the prefix (but at least about 256): by all of them
    once all are in. In between the diffusion stays the same while samples are added, so that the log-likelihoods of prefixes
    differ by those of their samples.
    """

    def __init__(self, model: pm.Model) -> None:
        target = Target(model, threads=1)  # checks the model
        self.model, self.labels, self.n_samples = model, target.labels, target.n_samples
        self.calibrates_diffusion = target.calibrates_diffusion
        self.coordinates, self.point = target.coordinates, target.coordinates.point
        self._function = self._compile(shorten=True)
        q = np.concatenate([np.ravel(self.point[v.name]) for v in model.value_vars]).astype(float)
        half = max(1, self.n_samples // 2)
        if half < self.n_samples and not np.isfinite(self.evaluate(q, half).likelihood(half)):
            # What a sample contributes may depend on later ones (a simulation less its mean): then all are needed.
            self._function = self._compile(shorten=False)

    def _compile(self, shorten: bool) -> Any:
        model = self.model
        prior = model.logp(vars=[*model.free_RVs, *model.potentials], jacobian=True)
        terms = [as_series(term, self.n_samples) for term in model.logp(vars=model.observed_RVs, sum=False)]
        graphs = [checked(g) for g in (prior, *terms)]
        (prior, *terms), q = join_nonshared_inputs(self.point, graphs, model.value_vars)
        n, reach, diffusion_samples = pt.lscalar("n"), pt.lscalar("reach"), pt.lscalar("diffusion_samples")
        terms = _shortened(terms, reach, diffusion_samples) if shorten else terms
        samples = pt.zeros((reach,))
        for term in terms:
            part = term[:reach]
            samples = samples + part.sum(axis=tuple(range(1, part.type.ndim)))
        outputs = [prior, samples[:n].sum(), samples[n:]]
        return compiled([q, n, reach, diffusion_samples], outputs, trust_input=True, often=True)

    def diffusion_samples(self, n: int) -> int:
        """Return the number of samples by which diffusions are calibrated when the likelihood has the first ``n``."""
        by = self.n_samples
        while self.calibrates_diffusion and by > n and by >= 2 * MIN_DIFFUSION_SAMPLES:
            by = -(-by // 2)
        return by

    def evaluate(self, q: np.ndarray, n: int, reach: int | None = None) -> Evaluation:
        """Log prior, and log-likelihood of the first n, n + 1, ..., reach samples; minus infinity for what cannot be."""
        by, reach = self.diffusion_samples(n), n if reach is None else reach
        prior, first, later = self._function(q, np.asarray(n), np.asarray(reach), np.asarray(by))
        path = np.empty(reach - n + 1)
        path[0] = first
        np.cumsum(later, out=path[1:])
        path[1:] += first
        path[np.isnan(path)] = -np.inf
        return Evaluation(q, float(prior) if prior == prior else -np.inf, n, path, by)


def _shortened(outputs: Sequence[Variable], reach: Variable, diffusion_samples: Variable) -> list[Variable]:
    """Run every recurrence up to a sample, and those that calibrate a diffusion by a number of samples of their own.

    Later outputs are NaN: the log-likelihood of the first samples must not depend on them.
    """
    known: dict[Variable, Variable] = {}
    for node in toposort(outputs):
        inputs = [known.get(v, v) for v in node.inputs]
        if isinstance(node.op, Recurrence) and node.op.role == "calibration":
            known[node.outputs[1]] = _calibration(node.op, inputs, diffusion_samples)
        elif isinstance(node.op, Recurrence):
            rows = pt.full((inputs[2].shape[0], node.op.n_outputs), np.nan)
            known[node.outputs[0]] = rows[:reach].set(node.op(*_first(inputs, reach))[0])
        elif any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            known.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs, strict=True))
    return [known.get(o, o) for o in outputs]


def _first(inputs: Sequence[Any], n: Variable) -> list[Any]:
    """Inputs of a recurrence for the first n samples."""
    params, starts, counts, substeps, samples = inputs
    counts = counts[:n]
    runs = 1 + pt.sum(counts < 0)
    if params.type.shape[0] != 1:
        params = params[:runs]
    return [params, starts[:runs], counts, substeps[: pt.sum(pt.maximum(counts, 0))], samples[:n]]


def _calibration(op: Recurrence, inputs: Sequence[Any], n: Variable) -> Variable:
    """Final state, whose sums over substeps are what they would be if those of the whole record were like the first ones."""
    first = _first(inputs, n)
    _, final = op(*first)  # type: ignore[misc]
    if inputs[0].type.shape[0] != 1:
        n_runs = inputs[1].shape[0]
        share = substeps_by_run(inputs[2], n_runs) / pt.maximum(substeps_by_run(first[2], n_runs), 1)
        rows = pt.zeros((n_runs, op.n_carry))
        return rows[: first[1].shape[0]].set(final) * share[:, None]
    result: Variable = final * (inputs[3].shape[0] / pt.maximum(first[3].shape[0], 1))
    return result
