"""Changes that a state triggers between the steps are resolved or warned of, and ordinary corners are left alone."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.special import erf

import pm_sysid as sid
from pm_sysid.solve import passed_over as module

switch, tanh = pm.math.switch, pm.math.tanh
T = 0.1 * np.arange(101)
PLACES = np.random.default_rng(1).uniform(2.0, 8.0, 12)


def bell(z: Any, width: Any) -> Any:
    """A pulse of unit integral."""
    return pt.exp(-((z / width) ** 2)) / (width * np.sqrt(np.pi))


#: A clock that triggers a pulse of unit integral on a decay.
CLOCK = sid.System(
    lambda t, x, u, p: (1.0, -p.a * x.z + bell(x.c - p.c0, p.w)),
    states=("c", "z"),
    params=("a", "w", "c0"),
    observe=lambda t, x, dx, u, p: x.z,
)


def level(t: np.ndarray, a: float, w: float, c: float) -> np.ndarray:
    """Its solution from zero and one."""
    m = c + a * w**2 / 2
    return np.exp(-a * t) + np.exp(-a * (t - c) + (a * w) ** 2 / 4) * (erf((t - m) / w) + erf(m / w)) / 2


def said(run: Any) -> tuple[Any, list[str]]:
    """What a function returns, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", sid.SubstepWarning)
        result = run()
    return result, [str(w.message) for w in caught if issubclass(w.category, sid.SubstepWarning)]


@pytest.mark.parametrize("width", [5e-3, 1e-3, 5e-4, 1e-4])
@pytest.mark.parametrize("step", [0.1, 1.0])
def test_a_pulse_that_a_clock_triggers_is_resolved_or_warned_of(width: float, step: float) -> None:
    t = step * np.arange(round(10 / step) + 1)
    for c in PLACES:
        params, start = {"a": 0.5, "w": width, "c0": c}, {"c": 0.0, "z": 1.0}
        run, words = said(lambda p=params, x=start: sid.simulate(CLOCK, sid.TimeSeries(t), p, x0=x)["y"].to_numpy())
        assert words or run == pytest.approx(level(t, 0.5, width, c), abs=2e-3)


def test_a_pulse_that_no_number_of_steps_resolves_is_named() -> None:
    params = {"a": 0.5, "w": 1e-4, "c0": 5.03}
    with pytest.warns(sid.SubstepWarning, match=r"Near t = 5\.0[23]\d* the equations change with a state"):
        sid.simulate(CLOCK, sid.TimeSeries(T), params, x0={"c": 0.0, "z": 1.0})


def test_a_narrow_barrier_turns_a_mass_back() -> None:
    """Its height is four times the kinetic energy."""
    barrier = sid.System(
        lambda t, x, u, p: (x.v, 2 * p.h * (x.z - p.z0) / p.w**2 * pt.exp(-(((x.z - p.z0) / p.w) ** 2)) - 0.1 * x.v),
        states=("z", "v"),
        params=("h", "z0", "w"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    for z0 in np.random.default_rng(0).uniform(1.0, 3.0, 12):
        params, start = {"h": 0.5, "z0": z0, "w": 3e-4}, {"z": 0.0, "v": 0.5}
        run, words = said(lambda p=params, x=start: sid.simulate(barrier, sid.TimeSeries(T), p, x0=x)["y"].to_numpy())
        assert words or run.max() < z0


def test_a_level_that_an_input_passes() -> None:
    system = sid.System(
        lambda t, x, u, p: bell(u.r - 5.03, 1e-3) - x.z,
        states=("z",),
        inputs=("r",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    with pytest.warns(sid.SubstepWarning, match=r"Near t = 5\.03\d* the equations change with a state or an input"):
        sid.simulate(system, sid.TimeSeries(T, T, intersample="foh"), {}, x0=1.0)


def filtered(width: float, **options: Any) -> tuple[pm.Model, float]:
    """A filter of the clock with a known pulse, and the exact log-likelihood where the rate is one half."""
    system = sid.System(
        lambda t, x, u, p: (1.0, -p.a * x.z + bell(x.c - 5.03, width)),
        states=("c", "z"),
        params=("a",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(T))
    record = sid.TimeSeries(T, None, level(T, 0.5, width, 5.03) + noise)
    with pm.Model() as model:
        params, start = {"a": pm.LogNormal("a", np.log(0.5), 0.5)}, {"c": 0.0, "z": 1.0}
        sid.ODEFilter("y", system, record, params, noise=0.02, x0=start, **options)
    return model, float(np.sum(-0.5 * (noise / 0.02) ** 2) - len(T) * np.log(0.02 * np.sqrt(2 * np.pi)))


@pytest.mark.parametrize("width", [1e-2, 1e-3, 5e-4])
def test_a_filter_resolves_such_a_pulse_or_doubts_itself(width: float) -> None:
    (model, exact), words = said(lambda: filtered(width))
    found = float(model.compile_logp(vars=model.observed_RVs)({"a_log__": np.log(0.5)}))
    error = sid.substeps_attrs(model)["substeps_y_error"]
    if width == 1e-2:
        assert not words and found == pytest.approx(exact, abs=0.1)
    else:
        assert error > 1 and abs(found - exact) > 1 and len(words) == 1 and "Near t = 5.0" in words[0]


def test_numbers_that_were_asked_for_and_checks_afterwards() -> None:
    (model, _), words = said(lambda: filtered(1e-3, substeps=1))
    assert len(words) == 1 and "dense where the equations change" in words[0]
    draws = xr.Dataset({"a": (("chain", "draw"), 0.5 + 0.01 * np.linspace(-1.0, 1.0, 10).reshape(2, 5))})
    check = sid.check_substeps(draws, model=model)
    assert check.level == "bad" and "pass over" in check.verdict and "Near t = 5.0" in check.verdict


def oscillator(force: Any, extra: Any = None) -> sid.System:
    return sid.System(
        lambda t, x, u, p: (x.v, u.F - x.z - 0.2 * x.v - force(x), *([extra(x)] if extra else [])),
        states=("z", "v", "w") if extra else ("z", "v"),
        inputs=("F",),
        observe=lambda t, x, dx, u, p: x.z,
    )


ORDINARY = {
    "friction": oscillator(lambda x: 0.5 * tanh(x.v / 0.05)),
    "slow friction": oscillator(lambda x: 0.5 * tanh(x.v / 0.3)),
    "stribeck": oscillator(lambda x: (0.3 + 0.4 * pt.exp(-((x.v / 0.05) ** 2))) * tanh(x.v / 0.02)),
    "freeplay": oscillator(lambda x: switch(x.z > 0.5, 3 * (x.z - 0.5), switch(x.z < -0.5, 3 * (x.z + 0.5), 0.0))),
    "drag": oscillator(lambda x: abs(x.v) * x.v),
    "pendulum": oscillator(lambda x: 3 * pm.math.sin(x.z)),
    "rational": oscillator(lambda x: x.z**3 / (1 + x.z**2)),
    "bump": oscillator(lambda x: 2 * pt.exp(-(((x.z - 0.5) / 0.2) ** 2))),
    "hysteresis": oscillator(lambda x: 2 * x.w, lambda x: x.v - 0.5 * abs(x.v) * x.w - 0.3 * x.v * abs(x.w)),
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("intersample", ["zoh", "foh"])
def test_ordinary_corners_and_bends_take_the_steps_that_doubling_asks_for(name: str, intersample: str, monkeypatch) -> None:
    t = 0.1 * np.arange(300)
    forces = {"foh": 2 * np.sin(t) + np.sin(2.3 * t + 1), "zoh": 2 * np.random.default_rng(0).standard_normal(len(t))}
    record = sid.TimeSeries(t, forces[intersample], intersample=intersample)
    run, words = said(lambda: sid.simulate(ORDINARY[name], record, {}, x0=0.5))
    monkeypatch.setattr(module, "passed_over", lambda *args: None)
    alone, _ = said(lambda: sid.simulate(ORDINARY[name], record, {}, x0=0.5))
    assert not words and run.attrs["substeps"] == alone.attrs["substeps"]


def test_polynomials_are_not_looked_at() -> None:
    def equations(*rates: Any) -> tuple[int, ...]:
        states, inputs, params = [f"x{i}" for i in range(len(rates))], ("u",), ("k", "n")
        observe = lambda t, x, dx, u, p: x.x0  # noqa: E731
        dynamics = lambda t, x, u, p: [rate(x.x0, u.u, p) for rate in rates]  # noqa: E731
        return sid.System(dynamics, states=states, inputs=inputs, params=params, observe=observe).abrupt

    smooth = [
        lambda x, u, p: -p.k * x + u,
        lambda x, u, p: pt.exp(p.k) * x**3 / (1 + abs(p.n)) - u * x**2,
        lambda x, u, p: (x - p.k) * (x + p.k) * x - pt.exp(-p.n) * x,
    ]
    bent = [
        lambda x, u, p: tanh(x / p.k),
        lambda x, u, p: switch(x > p.k, 1.0, 0.0),
        lambda x, u, p: abs(x) * x,
        lambda x, u, p: x / (p.k + x),
        lambda x, u, p: x**p.n,
        lambda x, u, p: pm.math.sqrt(x),
        lambda x, u, p: x + pt.exp(u),
        lambda x, u, p: (x + pm.math.sin(x)) ** 2,
    ]
    assert equations(*smooth) == () and sid.models.duffing().abrupt == ()
    assert equations(*bent) == tuple(range(len(bent))) and equations(smooth[0], bent[0]) == (1,)
