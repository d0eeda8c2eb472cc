"""Relations in the filter: what is implied, contradictory or nonlinear (``test_ek_dense`` has linear ones)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.solve import options
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.steps.relations import consistent_start
from pm_sysid.symbolic.scalars import evaluate, symbols
from support.linear_cases import PYTHON

type Relations = Callable[..., Any] | None


def mass(t: Any, x: Any, u: Any, p: Any) -> Any:
    return x.a + x.b - p.total


def reaction(relations: Relations) -> sid.System:
    """a <-> b."""
    return sid.System(
        lambda t, x, u, p: (-p.k * x.a + p.m * x.b, p.k * x.a - p.m * x.b),
        states=("a", "b"),
        params=("k", "m", "total"),
        observe=lambda t, x, dx, u, p: x.b,
        relations=relations,
    )


def energy(t: Any, x: Any, u: Any, p: Any) -> Any:
    return x.v**2 / 2 - p.w2 * pm.math.cos(x.z) + p.level


def pendulum(relations: Relations) -> sid.System:
    """A pendulum without friction."""
    return sid.System(
        lambda t, x, u, p: (x.v, -p.w2 * pm.math.sin(x.z)),
        states=("z", "v"),
        params=("w2", "level"),
        observe=lambda t, x, dx, u, p: x.z,
        relations=relations,
    )


def loglik(system: sid.System, params: Any, x0: Any, std: Any, y: np.ndarray, solver: Any, free: tuple[int, ...] = ()) -> Any:
    """Log-likelihood of samples 0.25 apart, two steps each, as an expression."""
    record = sid.TimeSeries(0.25 * np.arange(len(y)), None, y)
    problem = Problem.build(system, solver, [record], free)
    ones = np.ones(len(system.chain_states))
    unknowns = Unknowns(params, np.atleast_2d(x0), np.atleast_2d(std), np.array([0.1]), ones)
    return problem.run(y[:, None], unknowns, problem.data([record], 2))[0].sum()


Y = np.array([0.1, 0.3, 0.35, np.nan, 0.6])
CHOICES = [
    pytest.param(sid.EK1(order=2, diffusion=1.0), id="EK1"),
    pytest.param(sid.EK1(order=3, diffusion="dynamic"), id="EK1 dynamic"),
    pytest.param(sid.EK1(order=2), id="EK1 mle"),
    pytest.param(sid.EK0(order=2, diffusion=1.0), id="EK0"),
]


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("free", [(), (0, 1)])
@pytest.mark.parametrize("solver", [choice for choice in CHOICES if choice.id != "EK1 mle"])
def test_what_is_implied_changes_nothing(
    solver: Any, free: tuple[int, ...], loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would fail if a relation that others imply were divided by what rounding leaves of its variance, in the gradient too."""
    if loops:
        monkeypatch.setattr(options, "UNROLLED", 0)

    def found(relations: Relations) -> np.ndarray:
        k = pt.dvector("params")
        x0, std = ((1.0, 0.0), (0.0, 0.0)) if not free else ((0.8, 0.1), (0.3, 0.2))
        value = loglik(reaction(relations), k, x0, std, Y, solver, free)
        at = {k: np.array([0.7, 0.2, 1.0])}
        # The total is known with the initial state: its derivative alone would contradict that.
        return np.array([value.eval(at, mode=PYTHON), *pt.grad(value, k).eval(at, mode=PYTHON)[:2]])

    once = found(mass)
    assert np.all(np.isfinite(once))
    again = found(lambda t, x, u, p: (mass(t, x, u, p), 3.0 * mass(t, x, u, p), p.k * (x.b + x.a) - p.k * p.total))
    np.testing.assert_allclose(again, once, rtol=1e-9)
    assert abs(found(None)[0] - once[0]) > 1e-6  # the relation does say something


def test_calibration_counts_the_residuals_of_the_ode_alone() -> None:
    """Would fail if relations that others imply, whose residuals are zero, made the diffusion smaller."""
    at, y = np.array([2.1, 2.1 * np.cos(1.2)]), 1.2 * np.cos(1.4 * 0.25 * np.arange(12))
    record = sid.TimeSeries(0.25 * np.arange(12), None, y)
    found = []
    for relations in (energy, lambda t, x, u, p: (energy(t, x, u, p), 2.0 * energy(t, x, u, p), p.w2 * energy(t, x, u, p))):
        problem = Problem.build(pendulum(relations), sid.EK1(order=2), [record])
        unknowns = Unknowns(at, np.array([[1.2, 0.0]]), np.zeros((1, 2)), np.array([0.1]), np.ones(1))
        found.append(problem.calibrate(unknowns, problem.data([record], 2)).eval(mode=PYTHON))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


@pytest.mark.parametrize("solver", CHOICES)
def test_a_relation_without_slope_is_left_alone(solver: Any) -> None:
    """Would fail if the energy of a system at rest, whose slopes are zero, made the filter divide zero by zero."""
    w2 = pt.dvector("params")
    value = loglik(pendulum(lambda t, x, u, p: x.v**2 + p.w2 * x.z**2), w2, (0.0, 0.0), (0.0, 0.0), np.zeros(5), solver)
    plain = loglik(pendulum(None), w2, (0.0, 0.0), (0.0, 0.0), np.zeros(5), solver)
    at = {w2: np.array([2.0, 0.0])}
    found, expected = (np.append(pt.grad(v, w2).eval(at, mode=PYTHON), v.eval(at, mode=PYTHON)) for v in (value, plain))
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("solver", CHOICES)
@pytest.mark.parametrize("free", [(), (0, 1)])
def test_the_gradient_of_a_nonlinear_relation(solver: Any, free: tuple[int, ...]) -> None:
    """Would fail if a derivative of the conditioning were missing, at the start or in a step."""
    x0, std = ((1.2, 0.0), (0.0, 0.0)) if not free else ((1.1, 0.1), (0.2, 0.3))
    w2 = pt.dscalar("w2")
    y = 1.2 * np.cos(1.4 * 0.25 * np.arange(12))
    value = loglik(pendulum(energy), pt.stack([w2, w2 * np.cos(1.2)]), x0, std, y, solver, free)
    slope, h = float(pt.grad(value, w2).eval({w2: 2.1}, mode=PYTHON)), 1e-4
    up, down, up2, down2 = (float(value.eval({w2: 2.1 + d}, mode=PYTHON)) for d in (h, -h, 2 * h, -2 * h))
    rough = (8 * (up - down) - (up2 - down2)) / (12 * h)
    assert np.isfinite(slope)
    assert slope == pytest.approx(rough, rel=1e-6)


def test_a_contradiction_is_impossible() -> None:
    """Would fail if a start that is off the relation were solved from anyway, or one that obeys it to rounding refused."""
    total = pt.dscalar("total")
    value = loglik(reaction(mass), pt.stack([0.7, 0.2, total]), (1.0, 0.1), (0.0, 0.0), Y, sid.EK1(order=2, diffusion=1.0))
    assert value.eval({total: 1.0}, mode=PYTHON) == -np.inf
    assert value.eval({total: 1.1001}, mode=PYTHON) == -np.inf
    assert np.isfinite(value.eval({total: 1.1}, mode=PYTHON))
    assert np.isfinite(value.eval({total: 1.1 * (1 + 1e-12)}, mode=PYTHON))


def circle(
    x0: tuple[float, float], deviations: tuple[float, float], free: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, bool]:
    """An initial state on the unit circle: mean, spread, and whether it is possible."""
    system = sid.System(
        lambda t, x, u, p: (-x.b, x.a),
        states=("a", "b"),
        observe=lambda t, x, dx, u, p: x.a,
        relations=lambda t, x, u, p: x.a**2 + x.b**2 - 1.0,
    )
    std = symbols("std", 2)
    start = consistent_start(system, system.x, std, free)
    spread = [s for row in start.spread for s in row]
    assert start.possible is not None
    values = dict(zip((*system.x, *std), (*x0, *deviations), strict=True))
    *found, possible = evaluate([*start.mean, *spread, start.possible], values)
    return np.array(found[:2]), np.array(found[2:]).reshape(2, -1), bool(possible)


def test_an_uncertain_start_is_moved_onto_the_relation() -> None:
    """Would fail if it stayed off it, were certain along it, or uncertain across."""
    mean, spread, possible = circle((1.3, 0.4), (0.2, 0.2), (0, 1))
    assert possible
    # Equal deviations in both directions: the nearest point.
    np.testing.assert_allclose(mean, np.array([1.3, 0.4]) / np.hypot(1.3, 0.4), rtol=1e-9)
    covariance = spread @ spread.T
    along = np.array([-mean[1], mean[0]])
    np.testing.assert_allclose(covariance, 0.04 * np.outer(along, along), atol=1e-9)


def test_a_start_that_is_partly_known() -> None:
    """Would fail if a known state moved, or the other one kept an uncertainty that it does not have."""
    mean, spread, possible = circle((0.6, 0.7), (0.0, 0.1), (1,))
    assert possible
    np.testing.assert_allclose(mean, [0.6, 0.8], rtol=1e-9)
    np.testing.assert_allclose(spread, 0.0, atol=1e-9)
    assert circle((0.6, 0.8), (0.0, 0.0), ())[2]
    assert not circle((0.6, 0.8001), (0.0, 0.0), ())[2]


@pytest.mark.parametrize("steps", [1, 4])
def test_energy_keeps_a_pendulum_in_step(steps: int) -> None:
    """Would fail if the relation did not reach the solution: the error without it is at least three times as large."""
    import scipy.integrate

    t = 0.3 * np.arange(101)
    truth = scipy.integrate.solve_ivp(
        lambda t, x: [x[1], -2.0 * np.sin(x[0])], (0.0, 30.0), (2.0, 0.0), t_eval=t, method="DOP853", rtol=1e-12, atol=1e-12
    ).y
    errors = {}
    for relations in (None, energy):
        record = sid.TimeSeries(t, None, np.full(len(t), np.nan))
        problem = Problem.build(pendulum(relations), sid.EK1(order=3), [record])
        unknowns = Unknowns(
            np.array([2.0, 2.0 * np.cos(2.0)]), np.array([[2.0, 0.0]]), np.zeros((1, 2)), np.ones(1), np.ones(1)
        )
        found = problem.run(record.output_matrix, unknowns, problem.data([record], steps), "moments")[0].eval()
        errors[relations] = np.sqrt(np.mean((found[:, :2].T - truth) ** 2))
        kept = found[:, 1] ** 2 / 2 - 2.0 * np.cos(found[:, 0]) + 2.0 * np.cos(2.0)
        if relations is not None:
            assert np.max(np.abs(kept)) < 1e-3 * np.max(np.abs(truth[1])) ** 2
    assert errors[energy] < errors[None] / 3, errors


def test_beside_a_process() -> None:
    """Would fail if a relation were lost, or conditioned on otherwise, where random numbers of a process are rotated."""
    t, y = 0.25 * np.arange(6), np.array([0.1, 0.3, 0.35, np.nan, 0.6, 0.5])

    def exchange(relations: Relations) -> sid.System:
        return sid.System(
            lambda t, x, u, p: (-p.k * x.a + u.flow, p.k * x.a - u.flow),
            states=("a", "b"),
            inputs=("flow",),
            params=("k", "total"),
            observe=lambda t, x, dx, u, p: x.b,
            relations=relations,
        )

    def found(relations: Relations, latent: bool) -> float:
        with pm.Model() as model:
            k = pm.Normal("k", 0.7, 1e-3)
            record = sid.TimeSeries(t, None if latent else np.zeros(6), y, intersample="zoh")
            sid.ODEFilter(
                "y",
                exchange(relations),
                record,
                {"k": k, "total": 1.0},
                noise=0.1,
                x0={"a": 0.8, "b": 0.1},
                x0_std=0.3,
                solver=sid.EK1(order=2, diffusion=1.0),
                substeps=1,
                latent={"flow": sid.OU(scale=1e-9, length=1.0)} if latent else None,
            )
        value = model.replace_rvs_by_values([model.logp(model.observed_RVs)])[0]
        return float(value.eval({model.rvs_to_values[k]: 0.7}, mode=PYTHON))

    # A process that is as good as zero is an input of zero.
    assert found(mass, latent=True) == pytest.approx(found(mass, latent=False), rel=1e-9)
    assert found(mass, latent=False) != pytest.approx(found(None, latent=False), rel=1e-3)


def test_a_batch_of_records_and_particles() -> None:
    """Would fail if a lane contradicted by its parameters touched its neighbours, or a run went on without its relations."""
    t, rng = 0.3 * np.arange(9), np.random.default_rng(0)
    records = [sid.TimeSeries(t, None, 1.2 * np.cos(1.3 * t) + 0.1 * rng.standard_normal(9)) for _ in range(2)]
    with pm.Model() as model:
        w2, start = pm.LogNormal("w2", 0.7, 0.2), pm.Normal("start", 1.2, 0.1)
        params = {"w2": w2, "level": w2 * pt.cos(pt.minimum(start, 1.25))}
        sid.ODEFilter("y", pendulum(energy), records, params, noise=0.1, x0={"z": start, "v": 0.0}, substeps=2)
    target = sid.Target(model)
    points = np.array([[0.7, 1.2], [0.6, 1.3], [0.8, 1.1], [0.75, 1.24]])  # the second contradicts the relation
    whole = target.log_likelihood(points, target.n_samples)
    one = [float(model.compile_logp(model.observed_RVs)({"w2_log__": a, "start": b})) for a, b in points]
    assert whole[1] == one[1] == -np.inf
    np.testing.assert_allclose(whole[[0, 2, 3]], np.array(one)[[0, 2, 3]], rtol=1e-10)
