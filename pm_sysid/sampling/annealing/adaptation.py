"""Proposals that learn the shape of a posterior: robust adaptive Metropolis, begun anew from the covariance of its draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

#: Share of the paper's proposals, of many widths, among the shaped ones: a chain beside the posterior finds its way by them.
EXPLORING = 0.3
#: Factors of ten of the given widths between which those of the exploring proposals lie.
DECADES = -1.0, 2.0
#: Acceptance that the size of the proposals aims at.
TARGET_ACCEPTANCE = 0.234
#: Exponent with which the steps of the adaptation shrink.
DECAY = 0.66
#: Degrees of freedom of the preconditioned proposals.
FREEDOM = 5.0
#: Parts of the adaptation after which the shape is taken from the draws of that part.
RENEWED = (0.15, 0.3, 0.5, 0.75)
#: Weight of the shape before then: for draws that know little, and for what they have not seen.
KEPT = 1e-2, 1e-3


class Shape(NamedTuple):
    """What proposals are stretched by, and what is known for it.

    Attributes
    ----------
    root : ndarray, shape (d, d)
        Lower triangular factor.
    draws : int
        Number of draws it has learnt from.
    since : int
        Of these, those before the shape was last taken from draws.
    mean, scatter : ndarray, shapes (d,) and (d, d)
        Mean, and sum of squares and products about it, of the draws since then.
    """

    root: np.ndarray
    draws: int
    since: int
    mean: np.ndarray
    scatter: np.ndarray


def multivariate_t(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw a step before it is stretched: multivariate t, the same in all directions."""
    normal = rng.standard_normal(size)
    step: np.ndarray = normal / math.sqrt(rng.chisquare(FREEDOM) / FREEDOM)
    return step


def exploring(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw a step before it is multiplied by the widths: one-dimensional Cauchy, with a random factor for all."""
    step: np.ndarray = 10.0 ** rng.uniform(*DECADES) * rng.standard_cauchy(size)
    return step


def begun(widths: np.ndarray) -> Shape:
    """Shape of independent proposals, which has learnt nothing."""
    d = len(widths)
    return Shape(np.diag(widths), 0, 0, np.zeros(d), np.zeros((d, d)))


def adapted(shape: Shape, step: np.ndarray | None, accept: float, draw: np.ndarray, total: int) -> Shape:
    """Shape after a draw: longer in the direction of a step that was likely taken, shorter in that of others.

    Parameters
    ----------
    shape : Shape
        Before.
    step : ndarray, shape (d,), or None
        What its factor was multiplied by; None for another proposal, of which only the draw counts.
    accept : float
        Probability with which the proposal was accepted.
    draw : ndarray, shape (d,)
        Where the chain is now.
    total : int
        Number of draws that the shape will learn from in all.

    Notes
    -----
    The factor is that of ``S (I + eta (accept - target) u u') S'`` with the direction ``u`` of the step and
    ``eta = min(1, d k^-0.66)`` (Vihola 2012, Statistics and Computing 22, 997-1008, Eq. 1). It finds the size at once and a
    long narrow shape slowly; therefore it begins anew, now and then, from the covariance of the draws since the last time,
    scaled for random walks (Haario, Saksman and Tamminen 2001, Bernoulli 7, 223-242).
    """
    d, number, since = len(draw), shape.draws + 1, shape.since
    count, apart = number - since, draw - shape.mean
    mean = shape.mean + apart / count
    scatter = shape.scatter + np.outer(apart, draw - mean)
    root = shape.root if step is None else _stretched(shape.root, step, accept, count + (10 * d if since else 0))
    if number in [int(total * part) for part in RENEWED] and count > 2 * d:
        trust = count / (count + 5 * d)
        covariance = trust * 2.38**2 / d * scatter / (count - 1)
        root = _factor(covariance + ((1 - trust) * KEPT[0] + KEPT[1]) * root @ root.T, root)
        since, mean, scatter = number, np.zeros(d), np.zeros((d, d))
    return Shape(root, number, since, mean, scatter)


def _stretched(root: np.ndarray, step: np.ndarray, accept: float, number: int) -> np.ndarray:
    """Factor after a step of robust adaptive Metropolis."""
    d, along = len(step), root @ (step / np.linalg.norm(step))
    rate = min(1.0, d * number**-DECAY)
    return _factor(root @ root.T + rate * (accept - TARGET_ACCEPTANCE) * np.outer(along, along), root)


def _factor(matrix: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Factor of a covariance; the one before where rounding makes it indefinite."""
    try:
        factor: np.ndarray = scipy.linalg.cholesky(matrix, lower=True)
    except (np.linalg.LinAlgError, ValueError):
        return before
    return factor
