"""Points that explain a record, found by free runs from prior draws, and steps that rule none of them out."""

from __future__ import annotations

import logging

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.solve.explaining import explaining_points
from pm_sysid.solve.filter_graph import Unknowns


def points(rows: np.ndarray) -> list[Unknowns]:
    """Points with two parameters and an initial state."""
    return [Unknowns(row[:2], row[None, 2:], np.zeros((1, 0)), np.ones(1), np.ones(0)) for row in rows]


def values(found: list[Unknowns]) -> np.ndarray:
    return np.array([[*u.params, *np.ravel(u.x0)] for u in found])


@pytest.mark.parametrize("width", [0.3, 0.01])
def test_points_are_those_of_the_posterior(width: float) -> None:
    """The product of two rates is known, one of them a little: the posterior is a ridge, a hundredth as wide as the prior."""
    rng = np.random.default_rng(1)
    draws = np.column_stack([np.exp(rng.standard_normal((512, 2))), rng.standard_normal(512)])

    def judge(at: list[Unknowns]) -> np.ndarray:
        a, b, z = values(at).T
        return np.asarray(-0.5 * ((np.log(a * b) - 1.0) ** 2 + (z - 0.5) ** 2) / width**2 - 0.5 * (np.log(a) - 0.2) ** 2 / 0.25)

    found = values(explaining_points(points(draws), judge(points(draws)), judge, 40))
    assert len(found) == 40 and np.all(found[:, :2] > 0)
    away = np.column_stack([np.log(found[:, 0] * found[:, 1]) - 1.0, found[:, 2] - 0.5]) / width
    assert np.abs(away).max() < 4.5 and np.all(away.std(axis=0) > 0.6)  # far apart among draws of the posterior
    assert 0.3 < np.log(found[:, 0]).std() < 0.9


def test_none_where_little_is_explained_or_unknowns_are_many() -> None:
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((512, 3))
    assert explaining_points(points(draws), np.where(np.arange(512) < 5, 0.0, -np.inf), lambda at: np.zeros(len(at)), 8) == []
    many = [Unknowns(row, np.zeros((1, 1)), np.zeros((1, 0)), np.ones(1), np.ones(0)) for row in rng.standard_normal((512, 30))]
    assert explaining_points(many, np.zeros(512), lambda at: np.zeros(len(at)), 8) == []
    still = points(np.ones((512, 3)))
    assert explaining_points(still, np.zeros(512), lambda at: np.zeros(len(at)), 8) == []
    sharp = np.where(np.arange(512) < 100, -1e6 * np.arange(512.0), -np.inf)
    assert explaining_points(points(draws), sharp, lambda at: np.full(len(at), -np.inf), 8) == []


@pytest.mark.parametrize("constant", [0.3, -7.3, 1e-3])
def test_what_is_the_same_at_all_draws_stays(constant: float) -> None:
    draws = np.column_stack([np.random.default_rng(1).standard_normal((512, 2)), np.full(512, constant)])

    def judge(at: list[Unknowns]) -> np.ndarray:
        return np.asarray(-0.5 * (values(at)[:, 0] / 0.01) ** 2)

    found = values(explaining_points(points(draws), judge(points(draws)), judge, 16))
    assert len(found) == 16 and np.all(found[:, 2] == pytest.approx(constant)) and np.ptp(found[:, 1]) > 1.0


@pytest.mark.parametrize("width", [1e-4, 1e-6])
def test_one_unknown_may_be_known_a_million_times_better_than_another(width: float) -> None:
    draws = np.random.default_rng(1).standard_normal((512, 3))

    def judge(at: list[Unknowns]) -> np.ndarray:
        return np.asarray(-0.5 * ((values(at)[:, 0] - 0.1) / width) ** 2)

    found = values(explaining_points(points(draws), judge(points(draws)), judge, 16))
    assert len(found) == 16 and np.abs(found[:, 0] - 0.1).max() < 6 * width and np.ptp(found[:, 1]) > 1.0


# -- a cliff ----------------------------------------------------------------------------------------------------------

#: Three infusions, whose ends are sample times at which nothing is measured.
T = np.sort(np.r_[np.arange(0.0, 24.0), 2.05, 8.05, 14.02])
DOSE = 40.0 * np.isin(T, [2.0, 8.0, 14.0])
SATURABLE = sid.System(
    lambda t, x, u, p: (u.D - p.ka * x.g, p.ka * x.g - p.Vm * x.c / (p.Km + x.c)),
    states=("g", "c"),
    inputs=("D",),
    params=("ka", "Vm", "Km"),
    observe=lambda t, x, dx, u, p: x.c,
)


def exact(ka: float) -> np.ndarray:
    """Concentrations at the times of the samples."""
    x = [np.zeros(2)]
    for i, dose in enumerate(DOSE[:-1]):
        run = solve_ivp(
            lambda s, z, d=dose: [d - ka * z[0], ka * z[0] - 0.5 * z[1] / (0.2 + z[1])],
            T[i : i + 2],
            x[-1],
            rtol=1e-9,
            atol=1e-11,
        )
        x.append(run.y[:, -1])
    return np.array(x)[:, 1]


def test_steps_rule_out_no_fast_rate_that_explains_the_record(caplog: pytest.LogCaptureFixture) -> None:
    """A step over the jump of a dose takes the concentration below the pole of its elimination, for fast rates only.

    The nearest prior draws were on the near side of this cliff: 16 steps were chosen, and a third of the posterior ruled out.
    """
    y = exact(5.0) + 0.03 * np.random.default_rng(0).standard_normal(len(T))
    y[np.isin(T, [2.05, 8.05, 14.02])] = np.nan
    with caplog.at_level(logging.INFO, logger="pm_sysid"), pm.Model() as model:
        rates = {
            "ka": pm.LogNormal("ka", np.log(3), 0.7),
            "Vm": pm.LogNormal("Vm", np.log(0.5), 0.5),
            "Km": pm.LogNormal("Km", np.log(0.3), 0.7),
        }
        record = sid.TimeSeries(T, DOSE, y, intersample="zoh")
        sid.ODEFilter("y", SATURABLE, record, rates, noise=pm.HalfNormal("noise", 0.09), x0=0.0)
    assert filter_view("y", model).op.grid.choice.substeps >= 32
    assert "points that explain it: the log-likelihood moves by" in caplog.text
    likelihood = model.compile_fn(model.logp(vars=[model["y"]], jacobian=False), inputs=model.value_vars, point_fn=False)
    for ka in (5.0, 8.0, 12.0):
        error = (y - exact(ka))[~np.isnan(y)]
        expected = -0.5 * np.sum((error / 0.03) ** 2) - len(error) * (np.log(0.03) + 0.5 * np.log(2 * np.pi))
        assert float(likelihood(*np.log([ka, 0.5, 0.2, 0.03]))) == pytest.approx(expected, abs=0.1)
