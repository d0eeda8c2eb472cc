"""Equations that switch: derivatives by differences, where those of the recurrence leave out that switches move."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.pem.differences import by_differences, standard_errors
from pm_sysid.pem.side_by_side import Coordinates
from pm_sysid.solve.substeps import SubstepWarning
from support.pem_cases import FREE, GUESS, OSCILLATOR, record

COULOMB = sid.System(
    lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.Fc * pt.sign(x.v) - p.k * x.z) / p.m),
    states=("z", "v"), inputs=("F",), params=("m", "c", "Fc", "k"), observe=lambda t, x, dx, u, p: x.z,
)  # fmt: skip
TRUTH = {"m": 1.0, "c": 0.5, "Fc": 1.0, "k": 20.0}
STEPS = sid.ExtendedKalman(substeps=16)


def rubbing(seed: int, sine: bool = True) -> sid.TimeSeries:
    """10 s of an oscillator with dry friction, by the steps of the fit; it starts at rest, and sticks there for a while."""
    rng, t = np.random.default_rng(seed), 0.02 * np.arange(500)
    force = 3 * np.sin(t * rng.uniform(2, 4) * (1 + 0.1 * t)) if sine else np.repeat(4 * rng.normal(size=50), 10)
    data = sid.TimeSeries(t, force, None, inputs="F", intersample="foh" if sine else "zoh")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstepWarning)  # a jump within a step is an error of the first order
        y = sid.simulate(COULOMB, data, TRUTH, x0=0.0, substeps=16)["y"].to_numpy()
    return data.replace(y=y + 0.01 * y.std() * rng.standard_normal(t.size))


def coordinates(fit: Any) -> Coordinates:
    unknowns = fit.setup.unknowns
    return Coordinates(fit.target, unknowns.lower, unknowns.upper, fit.fun)


def test_smooth_equations_are_left_alone() -> None:
    fit = sid.fit_pem(OSCILLATOR, record(), GUESS, predictor=FREE)
    assert by_differences(coordinates(fit), fit.x, fit.target.evaluate(fit.x)) is None
    assert "switch" not in fit.message


def test_a_bend_is_no_jump() -> None:
    """What is bent but does not jump, such as a stop of stiffness k, has the derivatives of its steps."""
    stop = sid.System(
        lambda t, x, u, p: (x.v, u.F - 0.4 * x.v - 2.0 * x.z - p.k * pt.maximum(x.z - p.gap, 0.0)),
        states=("z", "v"), inputs=("F",), params=("k", "gap"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    data = record(noise=0.0).replace(y=None)
    y = sid.simulate(stop, data, {"k": 5.0, "gap": 0.1}, x0=0.0, substeps=16)["y"].to_numpy()
    noisy = data.replace(y=y + 0.01 * np.random.default_rng(0).normal(size=y.size))
    fit = sid.fit_pem(stop, noisy, {"k": 3.0, "gap": 0.15}, predictor=STEPS, x0=0.0)
    assert fit.success and "switch" not in fit.message and np.all(np.abs(fit.x - [5.0, 0.1]) < 4 * fit.x_stderr)


@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_derivatives_are_those_over_standard_errors(objective: Any) -> None:
    predictor = STEPS if objective == "mse" else sid.ExtendedKalman(R="estimate", substeps=16)
    fit = sid.fit_pem(COULOMB, rubbing(0), TRUTH, predictor=predictor, x0=0.0, objective=objective, starts=1)
    assert "equations that switch" in fit.message
    found = by_differences(coordinates(fit), fit.x, fit.target.evaluate(fit.x))
    assert found is not None and found.evaluation.value <= fit.fun + 1e-9 * abs(fit.fun)
    step = np.where(np.arange(fit.x.size) == 2, 2 * fit.x_stderr, 0.0)
    low, high = fit.target.outputs(np.array([fit.x - step, fit.x + step]))
    slope = (high - low)[:, 0] / (2 * step[2])
    np.testing.assert_allclose(found.rates[2, :, 0], slope, atol=0.1 * np.abs(slope).max())
    # The exact derivative of the steps is another one.
    exact = fit.target.filter.run(*fit.target.layout.place(fit.x), fit.target.layout.motion, fit.target.want)[1]
    assert np.linalg.norm(exact[2, :, 0] - slope) > 0.2 * np.linalg.norm(slope)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["known", "estimated"])
@pytest.mark.parametrize("sine", [True, False])
def test_dry_friction_is_neither_doubted_nor_wrong(start: str, sine: bool) -> None:
    scores, doubted = [], 0
    for seed in range(25):
        known: dict[str, Any] = {"x0": 0.0} if start == "known" else {}
        guess = {"m": 1.3, "c": 0.3, "Fc": 0.7, "k": 15.0}
        fit = sid.fit_pem(COULOMB, rubbing(seed, sine), guess, predictor=STEPS, random_seed=seed, **known)
        scores.append((fit.x[:4] - list(TRUTH.values())) / fit.x_stderr[:4])
        doubted += not fit.success
    assert doubted <= 1
    # Errors of one record go together: 25 records tell a spread of one to 0.14.
    assert np.abs(scores).max() < 4.5 and 0.75 < np.sqrt(np.mean(np.square(scores))) < 1.3


def test_a_threshold_that_no_derivative_shows_is_named() -> None:
    relay = sid.System(
        lambda t, x, u, p: -p.a * x.T + pt.switch(pt.ge(u.F, p.th), 1.0, 0.0),
        states=("T",), inputs=("F",), params=("a", "th"), observe=lambda t, x, dx, u, p: x.T,
    )  # fmt: skip
    data = record(noise=0.0).replace(y=None, u=np.random.default_rng(0).normal(size=200))
    y = sid.simulate(relay, data, {"a": 1.0, "th": 0.5}, x0=0.0, substeps=2)["y"].to_numpy()
    noisy = data.replace(y=y + 0.01 * np.random.default_rng(1).normal(size=200))
    fit = sid.fit_pem(relay, noisy, {"a": 0.7, "th": 0.2}, predictor=FREE, x0=0.0, starts=1)
    assert not fit.success and "change with ['th'] in jumps alone" in fit.message


def test_an_unknown_that_has_run_off_has_no_standard_error() -> None:
    """Its information overflows; that of the others is told."""
    fit = sid.fit_pem(OSCILLATOR, record(), GUESS, predictor=FREE)
    evaluation = fit.target.evaluate(fit.x)
    plain = standard_errors(coordinates(fit), fit.x, evaluation)
    information = evaluation.information.copy()
    information[0, 0] = np.inf
    found = standard_errors(coordinates(fit), fit.x, evaluation._replace(information=information))
    assert found[0] == 0.0 and np.all(found[1:] > 0) and np.all(found[1:] <= plain[1:] * (1 + 1e-9))
