"""The study of the positioning system: its closed loop against the records, its model against a simulated record."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from support import scripts
from support.records import FOLDER


@pytest.fixture(scope="module")
def study() -> Any:
    return scripts.load("examples/emps.py")


M, FV, FC = 90.0, 200.0, 20.0


# -- exact solution under a held force --------------------------------------------------------------------------------


def by_scipy(v: float, force: float, time: float) -> tuple[float, float]:
    """Position and velocity from q = 0, integrated up to a standstill and on from there."""
    side = np.sign(v) if v else np.sign(force) * (abs(force) > FC)
    if side == 0:
        return 0.0, 0.0

    def standstill(t: float, x: Any) -> float:
        return float(x[1]) if v else 1.0

    def rate(t: float, x: Any) -> list[float]:
        return [x[1], (force - FV * x[1] - FC * side) / M]

    standstill.terminal = True  # type: ignore[attr-defined]
    run = solve_ivp(rate, (0, time), [0.0, v], "DOP853", rtol=1e-11, atol=1e-13, events=standstill)
    if run.status == 0:
        return float(run.y[0, -1]), float(run.y[1, -1])
    q, speed = by_scipy(0.0, force, time - run.t[-1])
    return float(run.y[0, -1]) + q, speed


CASES = {
    "glides": (0.1, 5.0),
    "accelerates backwards": (-0.1, -60.0),
    "sticks": (0.01, -10.0),
    "turns": (0.01, -60.0),
    "turns from below": (-0.01, 60.0),
    "stays": (0.0, 15.0),
    "breaks away": (0.0, -30.0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_solution_under_a_held_force(study: Any, case: str) -> None:
    v, force = CASES[case]
    q, speed = study.held(np.zeros(1), np.array([v]), np.array([force]), M, FV, FC, 0.08)
    np.testing.assert_allclose([q[0], speed[0]], by_scipy(v, force, 0.08), atol=1e-10)
    expected = {"sticks": 0.0, "stays": 0.0, "turns": -1.0, "turns from below": 1.0, "breaks away": -1.0}
    assert np.sign(speed[0]) == expected.get(case, np.sign(v))


def test_parameter_sets_side_by_side_equal_single_ones(study: Any) -> None:
    v, force = (np.array(column) for column in zip(*CASES.values(), strict=True))
    together = study.held(0 * v, v, force, M, FV, FC, 0.08)
    alone = [study.held(np.zeros(1), v[i : i + 1], force[i : i + 1], M, FV, FC, 0.08) for i in range(len(v))]
    np.testing.assert_array_equal(together, np.concatenate(alone, axis=1))


# -- closed loop against the records ----------------------------------------------------------------------------------


@pytest.mark.needs_records("emps_train.npz", "emps_test_pulses.npz")
def test_the_control_law_is_the_recorded_one(study: Any) -> None:
    record, loop = study.load("train", FOLDER)
    q = record.y
    volts = loop.kv * (loop.kp * (loop.reference[2:] - q[2:]) - (q[2:] - q[:-2]) * record.fs / 2)
    assert np.std(volts - record.u[2:] / loop.gain) < 4e-3
    assert np.std(record.u / loop.gain) > 1.0


@pytest.mark.needs_records("emps_train.npz", "emps_test_pulses.npz")
@pytest.mark.parametrize("part, micrometres", [("train", 1.62), ("test", 2.34)])
def test_the_published_parameters_in_closed_loop(study: Any, part: str, micrometres: float) -> None:
    record, loop = study.load(part, FOLDER)
    sets = {name: np.array([value, value * (1.1 if name == "M" else 1.0)]) for name, value in study.PUBLISHED.items()}
    steps = list(study.closed_loop(sets, record, loop))
    positions, volts = np.stack([q for q, _ in steps], axis=1), np.stack([u for _, u in steps], axis=1)
    errors = 1e6 * sid.rmse(record.y, positions)
    assert errors[0] == pytest.approx(micrometres, rel=0.02) and errors[1] > 1.5 * errors[0]
    assert sid.nrmse(record.u / loop.gain, volts[0]) < 6.0
    np.testing.assert_allclose(study.closed_rmse(study.PUBLISHED, record, loop), 1e-3 * errors[:1], rtol=1e-9)


# -- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_disturbance_of_a_simulated_record_is_found_in_newtons(study: Any) -> None:
    """A white force that the model does not know is what the diffusion stands for, at any number of substeps."""
    truth = {"M": 95.0, "Fv": 200.0, "Fc": 20.0, "offset": -3.0}
    rng = np.random.default_rng(1)
    force = 60.0 * np.sign(np.sin(2 * np.pi * 1.3 * np.arange(3000) * 1e-3)) + rng.normal(0, 10.0, 3000)
    q, v, positions = np.zeros(1), np.full(1, 0.02), []
    for tau in force + rng.normal(0, 3.0, 3000):
        positions.append(q[0])
        q, v = study.held(q, v, tau - truth["offset"], truth["M"], truth["Fv"], truth["Fc"], 1e-3)
    y = np.array(positions) + rng.normal(0, 2e-7, 3000)
    record = sid.TimeSeries(np.arange(3000) * 1e-3, force, y, intersample="zoh")
    with study.filter_model(record, v_s=1e-4, substeps=2) as model:
        mode = sid.find_mode(start=study.PUBLISHED, prior_draws=0)
    assert mode.converged
    spread = dict(zip([v.name for v in model.value_vars], np.sqrt(np.diag(mode.covariance)), strict=True))
    known = {**{f"{n}_log__": np.log(truth[n]) for n in ("M", "Fv", "Fc")}, "offset": truth["offset"]}
    known |= {"noise_log__": np.log(2e-7), "disturbance_log__": np.log(3.0)}
    found = dict(zip(spread, mode.point, strict=True))
    for name, value in known.items():
        assert abs(found[name] - value) < 4 * spread[name], name
    assert spread["disturbance_log__"] < 0.2 and spread["M_log__"] < 0.05


def test_without_the_records_the_study_says_so(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["emps.py", "--data", str(tmp_path)])
    runpy.run_path(str(scripts.ROOT / "examples" / "emps.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("Skipped: the EMPS records are not here.")
