"""Initial states that have to obey relations: what is refused, and what the test records of ``substeps`` start from."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.posterior.initial_state_check import check_initial_state, not_checkable
from pm_sysid.solve.consistent_start import check_start, consistent_points
from pm_sysid.solve.filter_graph import Problem, Unknowns

T = np.linspace(0.0, 3.0, 16)
RECORD = sid.TimeSeries(T, None, 1 - np.exp(-0.8 * T))
RATES = {"k": 0.8, "total": 1.0}


def reaction(relations: Any = lambda t, x, u, p: {"mass": x.a + x.b - p.total}) -> sid.System:
    """a -> b."""
    return sid.System(
        lambda t, x, u, p: (-p.k * x.a, p.k * x.a),
        states=("a", "b"),
        params=("k", "total"),
        observe=lambda t, x, dx, u, p: x.b,
        relations=relations,
    )


def test_numbers_that_contradict_a_relation_are_refused() -> None:
    """Would fail if the message did not name the relation, by how much it is missed and in which record."""
    known = [[0.0, 0.0]]
    check_start(reaction(), [RECORD], RATES, [[1.0, 0.0]], known)
    check_start(reaction(), [RECORD], RATES, [[0.7, 0.3 + 1e-9]], known)
    with pytest.raises(ValueError, match=r"x0 contradicts 'mass' .* which is 0\.1 in size .*a = 1\.0, b = 0\.1"):
        check_start(reaction(), [RECORD], RATES, [[1.0, 0.1]], known)
    with pytest.raises(ValueError, match=r"first sample of data\[1\]"):
        check_start(reaction(), [RECORD] * 2, RATES, [[1.0, 0.0], [1.0, 0.1]], known * 2)
    # Of several specimens, each has a total of its own.
    own = {"k": 0.8, "total": np.array([1.0, 1.1])}
    check_start(reaction(), [RECORD] * 2, own, [[1.0, 0.0], [1.0, 0.1]], known * 2)


def test_what_is_not_a_number_is_not_refused() -> None:
    """Would fail if a variable, or a state that is uncertain, were taken for a number."""
    check_start(reaction(), [RECORD], {"k": 0.8, "total": pt.dscalar()}, [[1.0, 0.1]], [[0.0, 0.0]])
    check_start(reaction(), [RECORD], RATES, [[pt.dscalar(), 0.1]], [[0.0, 0.0]])
    check_start(reaction(), [RECORD], RATES, [[1.0, 0.1]], [[0.0, 0.2]])
    # The rate does not enter the relation: what does, is known.
    with pytest.raises(ValueError, match="contradicts"):
        check_start(reaction(), [RECORD], {"k": pt.dscalar(), "total": 1.0}, [[1.0, 0.1]], [[0.0, 0.0]])


def test_an_expression_of_the_parameters_in_a_relation() -> None:
    """Would fail if what is computed from the parameters alone were not part of a relation."""
    system = sid.System(
        lambda t, x, u, p: {"q": -p.K @ x.q},
        states={"q": 2},
        params={"K": (2, 2)},
        observe=lambda t, x, dx, u, p: x.q[0],
        relations=lambda t, x, u, p: pt.linalg.inv(p.K)[0, 0] * x.q[0] - x.q[1],
    )
    record = sid.TimeSeries(T, None, np.zeros(T.size))
    K = {"K": np.diag([2.0, 2.0])}
    check_start(system, [record], K, [[1.0, 0.5]], [[0.0, 0.0]])
    with pytest.raises(ValueError, match=r"contradicts 'relations\[0\]'"):
        check_start(system, [record], K, [[1.0, 0.4]], [[0.0, 0.0]])


def test_points_are_moved_as_far_as_they_are_uncertain() -> None:
    """Would fail if a known state moved, or the least uncertain one most."""
    point = Unknowns(np.array([0.8, 1.0]), np.array([[1.2, 0.3]]), np.array([[0.1, 0.2]]), np.array([0.1]), np.ones(2))
    for free, expected in (((0, 1), [1.1, -0.1]), ((1,), [1.2, -0.2]), ((), [1.2, 0.3])):
        here = point._replace(x0_std=np.where(np.isin([0, 1], free), point.x0_std, 0.0))
        problem = Problem.build(reaction(), sid.EK1(order=2), [RECORD], free)
        (moved,) = consistent_points(problem, [RECORD], [here])
        np.testing.assert_allclose(moved.x0, [expected], rtol=1e-12)


def test_automatic_steps_with_an_uncertain_start(caplog: pytest.LogCaptureFixture) -> None:
    """Would fail if the test records began where the relation does not hold: no number of steps would do."""
    with caplog.at_level(logging.INFO, "pm_sysid"), pm.Model() as model:
        params = {"k": pm.LogNormal("k", 0.0, 0.3), "total": 1.0}
        sid.ODEFilter("y", reaction(), RECORD, params, noise=0.01, x0={"a": 0.8, "b": 0.1}, x0_std=0.2)
    assert filter_view("y", model).op.substeps <= 4


def test_blocks_cannot_keep_what_ties_chains_together() -> None:
    """Would fail if a relation between chains were dropped in silence, or one within a chain refused."""
    with pytest.raises(ValueError, match=r"the relations \['mass'\] tie several chains .* covariance='dense'"):
        Problem.build(reaction(), sid.EK1(order=2, covariance="block"), [RECORD])
    Problem.build(reaction(lambda t, x, u, p: x.a * x.a - x.a), sid.EK1(order=2, covariance="block"), [RECORD])


def test_processes_may_not_enter_a_relation() -> None:
    """Would fail if a relation that sees a random process conditioned on its path."""
    with (
        pytest.raises(ValueError, match=r"'mass' depends on total, which latent or varying makes a random process"),
        pm.Model(),
    ):
        sid.ODEFilter(
            "y", reaction(), RECORD, RATES, noise=0.1, x0=[1.0, 0.0], substeps=1, varying={"total": sid.RandomWalk(scale=0.1)}
        )


def test_what_the_linearised_start_costs_is_said_to_be_unknown() -> None:
    """Would fail if a check that integrates over states off the relation gave a number."""
    with pm.Model() as model:
        curved = reaction(lambda t, x, u, p: (x.a + x.b) ** 2 - p.total)
        params = {"k": pm.LogNormal("k"), "total": 1.0}
        sid.ODEFilter("y", curved, RECORD, params, noise=0.1, x0=[0.9, 0.1], x0_std=0.1, substeps=1)
    assert "cannot be measured" in not_checkable(filter_view("y", model))
    import xarray as xr

    draws = xr.Dataset({"k": (("chain", "draw"), np.ones((1, 20)))})
    with pytest.raises(ValueError, match="cannot be measured"):
        check_initial_state(draws, model=model)


@pytest.mark.parametrize(
    ("relations", "message"),
    [
        (lambda t, x, u, p: p.total - 1.0, "depends on no state"),
        (lambda t, x, u, p: (), "returned nothing"),
        (lambda t, x, p: x.a, "must accept the arguments"),
        (lambda t, x, u, p: "x.a", "return expressions of its arguments"),
        ("x.a", "give a function relations"),
    ],
)
def test_what_is_no_relation(relations: Any, message: str) -> None:
    """Would fail if it were found at the first likelihood only."""
    with pytest.raises((ValueError, TypeError), match=message):
        reaction(relations)
