"""Searches side by side, from starts where derivatives say nothing."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt

import pm_sysid as sid
from pm_sysid.pem.side_by_side import Coordinates, explore

#: A tank that is filled, with an outlet; its sensor ends at 2.
TANK = sid.System(
    lambda t, x, u, p: p.k * u.u - p.a * x.h, states=("h",), inputs=("u",), params=("k", "a"),
    observe=lambda t, x, dx, u, p: pt.minimum(x.h, 2.0),
)  # fmt: skip
TRUTH = {"k": 0.5, "a": 0.5}


def searched() -> tuple[Coordinates, sid.PEMResult]:
    """A fit to the tank that is filled from empty, and its coordinates."""
    t = 0.1 * np.arange(60)
    data = sid.TimeSeries(t, 1.5 + np.sin(t), None, inputs="u", intersample="foh")
    y = sid.simulate(TANK, data, TRUTH, x0=0.0, substeps=4)["y"].to_numpy()
    noisy = data.replace(y=y + 0.01 * np.random.default_rng(0).normal(size=t.size))
    fit = sid.fit_pem(TANK, noisy, TRUTH, predictor=sid.ExtendedKalman(substeps=4), x0=0.0, starts=1, progressbar=False)
    return Coordinates(fit.target, fit.setup.unknowns.lower, fit.setup.unknowns.upper, fit.fun), fit


def test_a_start_on_a_plateau_ends_and_stops_no_other() -> None:
    """A tank that stays full says nothing about its unknowns: all derivatives are zero, and no step has a size."""
    coordinates, fit = searched()
    full, near = np.array([90.0, 1e-3]), 1.2 * fit.x
    evaluation = fit.target.evaluate(full)
    gradient, information = coordinates.slope(full, evaluation)
    assert evaluation.finite and not gradient.any() and not information.any()
    ends, _ = explore(coordinates, np.array([full, near]), lambda x, e: False)
    by_start = {tuple(np.round(e.start, 6)): e for e in ends}
    assert np.allclose(by_start[tuple(np.round(full, 6))].x, full)
    assert np.allclose(by_start[tuple(np.round(near, 6))].x, fit.x, rtol=1e-3)


def test_derivatives_whose_squares_overflow_end_a_search() -> None:
    coordinates, fit = searched()
    inner = coordinates.slope

    class Steep(Coordinates):
        def slope(self, x, evaluation):  # type: ignore[no-untyped-def]
            gradient, information = inner(x, evaluation)
            return gradient, information * (np.inf if x[0] > 50 else 1.0)

    steep = Steep(fit.target, coordinates.lower, coordinates.upper, fit.fun)
    ends, _ = explore(steep, np.array([[90.0, 2.0], 1.2 * fit.x]), lambda x, e: False)
    assert sorted(e.how for e in ends) == ["ended", "unfinished"]


def test_a_guess_that_explodes_is_no_measure_of_what_is_small() -> None:
    """Where a mean squared error of 1e13 was the largest one, errors of 0.01 and of 3 were both as good as none."""
    c, fit = searched()
    exploding = Coordinates(fit.target, c.lower, c.upper, 1e13)
    assert exploding.gain(fit.fun, 100 * fit.fun) == c.gain(fit.fun, 100 * fit.fun) > 100
    assert exploding.unit(fit.fun) == c.unit(fit.fun)


def test_a_hidden_predator_that_the_guess_leaves_out_makes_no_doubt() -> None:
    """Prey alone is measured; without predators, where the guess begins, it grows without bound."""
    pair = sid.System(
        lambda t, x, u, p: (p.a * x.x - 0.5 * x.x * x.y, -p.c * x.y + p.d * x.x * x.y), states=("x", "y"),
        params=("a", "c", "d"), observe=lambda t, x, dx, u, p: x.x,
    )  # fmt: skip
    truth, t = {"a": 1.0, "c": 0.8, "d": 0.2}, np.linspace(0.0, 20.0, 81)
    clean = sid.simulate(pair, sid.TimeSeries(t, None), truth, x0=[5.0, 1.0])["y"].to_numpy()
    for seed in (0, 4, 5):
        rng = np.random.default_rng(seed)
        y = clean + 0.1 * rng.standard_normal(81)
        guess = {k: v * np.exp(0.3 * rng.standard_normal()) for k, v in truth.items()}
        fit = sid.fit_pem(pair, sid.TimeSeries(t, None, y), guess, progressbar=False)
        assert fit.success and "Another optimum" not in fit.message
        assert all(abs(fit.p[k] - v) < 4 * fit.stderr[k] for k, v in truth.items())
