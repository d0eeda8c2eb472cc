"""What does not fit is refused by name, with the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from support.pem_cases import GUESS, OSCILLATOR, record

DATA = record(n=40)
KALMAN = sid.ExtendedKalman
START = sid.InitialState
STATIC = sid.System(None, states=(), inputs=("u",), params=("k",), observe=lambda t, x, dx, u, p: p.k * u.u)


def call(**changes: Any) -> Any:
    arguments = {"system": OSCILLATOR, "data": DATA, "p_guess": GUESS, "x0": 0.0, "predictor": KALMAN(substeps=1), **changes}
    return sid.fit_pem(arguments.pop("system"), arguments.pop("data"), arguments.pop("p_guess"), **arguments)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"system": "oscillator"}, TypeError, "system is str; give a System"),
        ({"system": STATIC}, ValueError, "the system has no states"),
        ({"data": np.zeros(3)}, TypeError, "data is ndarray; give a TimeSeries"),
        ({"data": DATA.replace(y=None)}, ValueError, "data has no outputs"),
        ({"data": DATA.replace(y=np.full(40, np.nan))}, ValueError, "every output is NaN"),
        ({"data": DATA.replace(y=np.zeros(40))}, ValueError, r"outputs that do not vary \(y = 0 at all samples\)"),
        ({"data": [DATA, DATA.replace(u=np.zeros((40, 2)))]}, ValueError, r"data\[1\] has 2 input channels"),
        ({"data": DATA[:2]}, ValueError, "2 measurements for 2 unknowns"),
        ({"data": DATA[:1]}, ValueError, "1 measurements for 2 unknowns .*nothing is left"),
        ({"p_guess": {"k": 3.0}}, ValueError, r"p_guess lacks \['c'\].*fixed="),
        ({"p_guess": {**GUESS, "mass": 1.0}}, ValueError, r"has the unknown names \['mass'\]"),
        ({"p_guess": {"a": GUESS, "k": 1.0}}, ValueError, "two numbers called 'k'"),
        ({"p_guess": [1.0, 2.0, 3.0]}, ValueError, r"has 3 numbers; give one for each parameter, in order: \('k', 'c'\)"),
        ({"p_guess": {"k": np.nan, "c": 1.0}}, ValueError, "p_guess of 'k' is nan; give a finite number"),
        ({"p_guess": {}, "fixed": GUESS}, ValueError, "there is nothing to find"),
        (
            {"latent": {"d": sid.OU(scale=1.0, length=1.0)}},
            TypeError,
            "latent is an argument of ODEFilter.*make the force a state",
        ),
        ({"coloured": {"y": sid.OU(scale=1.0, length=1.0)}}, TypeError, "coloured is an argument.*which observe adds"),
        ({"limits": (None, 1.0)}, TypeError, r"limits is an argument.*as missing \(NaN\)"),
        ({"noise": 0.1}, TypeError, "noise is an argument of ODEFilter.*that of the predictor"),
        ({"nose": 0.1}, TypeError, "unexpected keyword argument 'nose'"),
        (
            {"predictor": KALMAN(R=sid.StudentT(nu=4, scale=1.0))},
            TypeError,
            r"R is or holds StudentT.*outliers as missing \(NaN\)",
        ),
        ({"predictor": KALMAN(R={"y": sid.StudentT(nu=4, scale=1.0)})}, TypeError, "R is or holds StudentT"),
        (
            {"data": [DATA, DATA], "p_guess": {"k": [3.0, 4.0, 5.0], "c": 0.8}},
            ValueError,
            "3 numbers for 'k'; give one, .* for each of the 2 records",
        ),
        ({"fixed": {"k": 1.0}}, ValueError, r"\['k'\] are both in p_guess and fixed"),
        ({"fixed": {"m": 1.0}}, ValueError, "fixed names 'm', which is no parameter"),
        ({"fixed": [1.0]}, TypeError, "fixed is list"),
        ({"p_guess": {"k": 1.0}, "fixed": {"c": np.inf}}, ValueError, r"fixed\['c'\] is inf"),
        ({"objective": "mae"}, ValueError, "objective is 'mae'; give 'mse' or 'likelihood'"),
        ({"optimiser": "bfgs"}, TypeError, r"optimiser is 'bfgs'; give Optimiser\(method, options\)"),
        ({"bounds": 3}, TypeError, r"bounds is 3; give a pair \(lower, upper\)"),
        ({"bounds": ({"kk": 0.0}, None)}, ValueError, r"lower bounds have \['kk'\], and the unknowns are \['k', 'c'\]"),
        ({"bounds": (None, {"k": 9.0, "c": 9.0, "m": 9.0})}, ValueError, r"upper bounds have \['m'\], and the unknowns are"),
        ({"bounds": ({"k": 3.0, "c": 0.0}, {"k": 3.0, "c": 1.0})}, ValueError, "bounds of 'k' are 3.0 and 3.0.*use fixed"),
        ({"x0": [1.0]}, ValueError, "x0 has 1 entries"),
        ({"x0": {"q": 1.0}}, ValueError, r"x0 names the states \['q'\]"),
        ({"data": [DATA, DATA], "x0": [[0, 0], [0, 0], [0, 0]]}, ValueError, "x0 has 3 entries for 2 records"),
        ({"x0": START(estimate=1.5)}, TypeError, "InitialState: estimate is 1.5; give True or False"),
        ({"x0": START(estimate=("q",))}, ValueError, r"InitialState: estimate names the states \['q'\]"),
        ({"x0": START(estimate=(True, False))}, ValueError, "InitialState: estimate has 2 entries for 1 records"),
        ({"x0": START(0.0, P0=np.eye(3)), "predictor": KALMAN(R=1.0)}, ValueError, r"P0 has the shape \(3, 3\)"),
        ({"x0": START(0.0, P0=[1.0, 2.0]), "predictor": KALMAN(R=1.0)}, ValueError, "P0 has 2 entries for 1 records"),
        ({"x0": START(0.0, P0=-1.0), "predictor": KALMAN(R=1.0)}, ValueError, "P0 must be positive semi-definite"),
        ({"x0": START(0.0, P0="wide"), "predictor": KALMAN(R=1.0)}, ValueError, "P0 is 'wide'; give a covariance matrix"),
        ({"x0": START(0.0, P0=1.0)}, ValueError, "R is not given, but the predictor weighs"),
        ({"predictor": KALMAN(Q=1.0)}, ValueError, "R is not given, but the predictor weighs"),
        ({"predictor": sid.EK1(3)}, ValueError, "R is not given, but the predictor weighs"),
        ({"predictor": "ekf"}, TypeError, r"predictor is 'ekf'; give ExtendedKalman\(...\)"),
        ({"predictor": KALMAN(Q=np.eye(3), R=1.0)}, ValueError, r"Q has the shape \(3, 3\); give a covariance"),
        ({"predictor": KALMAN(Q=[1.0, 2.0], R=1.0)}, ValueError, r"Q has the shape \(2,\)"),
        ({"predictor": KALMAN(Q={"q": 1.0}, R=1.0)}, ValueError, r"Q names \['q'\]; give a standard deviation for"),
        ({"predictor": KALMAN(Q={"v": -1.0}, R=1.0)}, ValueError, r"Q\['v'\] is -1.0; give a non-negative standard"),
        ({"predictor": KALMAN(Q=[[1, 2], [2, 1]], R=1.0)}, ValueError, "Q must be positive semi-definite"),
        ({"predictor": KALMAN(Q=[[1, 2], [0, 1]], R=1.0)}, ValueError, "Q must be finite and symmetric"),
        ({"predictor": KALMAN(R=0.0)}, ValueError, "R must be positive definite"),
        ({"predictor": KALMAN(R={})}, ValueError, r"R lacks \['y'\]"),
        ({"predictor": KALMAN(R={"y": 0.0})}, ValueError, r"R\['y'\] is 0.0; give a positive standard"),
        ({"predictor": KALMAN(R="unknown")}, ValueError, "R is 'unknown'; give 'estimate'"),
        ({"predictor": KALMAN(R=object())}, TypeError, "R is object; give a number, a matrix, a dict"),
        ({"predictor": KALMAN(R="estimate")}, ValueError, "use objective='likelihood'"),
        ({"predictor": KALMAN(R={"y": "s"}), "objective": "likelihood"}, ValueError, r"p_guess lacks \['s'\]"),
        (
            {"predictor": KALMAN(R={"y": "k"}), "objective": "likelihood"},
            ValueError,
            r"\['k'\] as standard deviations, but these",
        ),
        (
            {"predictor": KALMAN(R={"y": "s"}), "objective": "likelihood", "p_guess": {**GUESS, "s": 0.0}},
            ValueError,
            "p_guess of 's' is 0.0; give a positive number",
        ),
        ({"predictor": sid.UnscentedKalman(R=1.0, kappa=-2.0)}, ValueError, "kappa is -2.0 for 2 states"),
    ],
)
def test_arguments(changes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(**changes)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: KALMAN(substeps=0), ValueError, "ExtendedKalman: substeps is 0"),
        (lambda: sid.UnscentedKalman(substeps="many"), ValueError, "UnscentedKalman: substeps is 'many'"),  # type: ignore[arg-type]
        (lambda: sid.UnscentedKalman(alpha=0.0), ValueError, "alpha is 0.0; it must be positive"),
        (lambda: sid.UnscentedKalman(beta=np.nan), ValueError, "beta is nan"),
        (lambda: sid.ProbabilisticKalman(solver="EK1"), TypeError, "solver is str; give an EK0 or EK1"),  # type: ignore[arg-type]
        (lambda: sid.Optimiser("ipopt"), ValueError, "Optimiser: method is 'ipopt'; give 'lm', 'bfgs' or 'trust'"),  # type: ignore[arg-type]
        (lambda: sid.Optimiser(options=[1]), TypeError, r"Optimiser: options is \[1\]; give a dict"),  # type: ignore[arg-type]
        (lambda: sid.ProbabilisticKalman(substeps="auto"), ValueError, "substeps is 'auto'; give a number"),  # type: ignore[arg-type]
    ],
)
def test_settings(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_bounds_of_some_unknowns_leave_the_others_open() -> None:
    whole = call(p_guess={"k": 3.0, "c": 0.1}, bounds=({"k": 0.0, "c": None}, {"k": None, "c": 0.2}))
    some = call(p_guess={"k": 3.0, "c": 0.1}, bounds=({"k": 0.0}, {"c": 0.2}))
    np.testing.assert_array_equal(some.x, whole.x)
    assert some.x[1] <= 0.2 < call().x[1] + 0.01


def test_one_number_bounds_all_entries_of_a_vector() -> None:
    system = sid.System(
        lambda t, x, u, p: -p.w[0] * x.z - p.w[1] * x.z**3,
        states=("z",),
        params={"w": 2},
        observe=lambda t, x, dx, u, p: x.z,
    )
    t = np.linspace(0.0, 2.0, 60)
    data = sid.TimeSeries(t, None, np.exp(-t) + 0.01 * np.random.default_rng(0).standard_normal(60))
    options: dict[str, Any] = {"x0": {"z": 1.0}}
    one = sid.fit_pem(system, data, {"w": [0.5, 0.2]}, bounds=({"w": 0.1}, None), **options)
    each = sid.fit_pem(system, data, {"w": [0.5, 0.2]}, bounds=({"w": [0.1, 0.1]}, None), **options)
    np.testing.assert_array_equal(one.x, each.x)
    assert one.x.min() == 0.1
