"""The script that plays the public boards: its rule of choice, its structures, what it knows of a sensor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.signal import firwin, lfilter

import pm_sysid as sid
from support.scripts import ROOT

#: The script does not show it either: fits and runs take the same steps.
pytestmark = pytest.mark.filterwarnings("ignore::pm_sysid.solve.substeps.SubstepWarning")


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield import_module("boards")
    for name in ("boards", "board_models"):
        sys.modules.pop(name, None)


@pytest.fixture
def models(boards: ModuleType) -> ModuleType:
    return boards.models


def test_white_errors_count_once_and_correlated_ones_more_often(boards: ModuleType) -> None:
    white = np.random.default_rng(0).standard_normal(200_000)
    assert boards.repeated(white) == pytest.approx(1.0, abs=0.05)
    for a in (0.5, 0.9):  # autoregressive: 1 + 2 sum a^(2k) = (1 + a^2) / (1 - a^2)
        assert boards.repeated(lfilter([1.0], [1.0, -a], white)) == pytest.approx((1 + a**2) / (1 - a**2), rel=0.1)


@pytest.mark.parametrize("kind", ["silverbox", "tanks", "bouc_wen", "emps"])
def test_every_structure_is_a_system_and_begins_where_a_smaller_one_ended(models: ModuleType, kind: str) -> None:
    for structure in getattr(models, f"{kind}_structures")():
        guess = structure.begin({structure.system.params[0]: 123.0})
        assert set(guess) | set(structure.fixed) == set(structure.system.params)
        assert guess[structure.system.params[0]] == 123.0 and np.isfinite(list(guess.values())).all()


def ended(structure: Any, fun: float, value: float) -> SimpleNamespace:
    """What stands for a fit: an error, and one value for all parameters."""
    values = dict.fromkeys(structure.system.params, value)
    return SimpleNamespace(fun=fun, p=values, x=np.array([*values.values()]), message="")


def test_a_search_begins_where_that_of_the_best_nested_structure_ended(
    boards: ModuleType, models: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    structures = {s.terms: s for s in models.emps_structures()}
    order, begins = iter(enumerate(structures.values(), 1)), []

    def fit_pem(system: Any, train: Any, guess: dict[str, float], **settings: Any) -> SimpleNamespace:
        number, structure = next(order)
        begins.append(guess)
        return ended(structure, 1.0 / number, float(number))

    monkeypatch.setattr(boards.sid, "fit_pem", fit_pem)
    t = np.arange(30) / 100
    board = boards.Board(models.emps_structures, {}, boards.estimated, short=30)
    boards.fitted(board, [*structures.values()], sid.TimeSeries(t, t, t))
    assert begins[0] == {name: models.EMPS_GUESS[name] for name in ("M", "Fv", "Fc", "offset")}
    assert begins[2] == {"M": 2.0, "Fv": 2.0, "Fc": 2.0, "offset": 2.0, "v1": 2.0, "v2": 0.0}
    # Not from the structures with the square of the speed, which have other viscous friction.
    assert begins[-1] == {"M": 2.0, "Fv": 2.0, "Fc": 2.0, "offset": 2.0, "v1": 2.0, "Fs": 0.0}


def test_a_structure_that_ended_worse_than_one_it_contains_is_told(boards: ModuleType, models: ModuleType) -> None:
    def names(structures: list[Any], errors: list[float]) -> dict[str, str | None]:
        found = [boards.Fitted(s, ended(s, e, 1.0), 0.0) for s, e in zip(structures, errors, strict=True)]
        return {f.structure.name: boards.beaten(f, found) for f in found}

    simple, direction, square, *_, stribeck = models.emps_structures()
    told = names([simple, direction, square, stribeck], [4.0, 2.0, 1.0, 3.0])
    assert told == {simple.name: None, direction.name: None, square.name: None, stribeck.name: direction.name}
    assert set(names([simple, direction, stribeck], [4.0, 2.0, 2.0 * (1 + 1e-9)]).values()) == {None}
    torricelli, clipped = models.tanks_structures()[:2]  # the end of the sensor has no parameter by which it could vanish
    assert set(names([torricelli, clipped], [1.0, 2.0]).values()) == {None}


def test_the_smallest_structures_are_those_of_the_catalogue(models: ModuleType) -> None:
    t = np.arange(40) / 600
    record = sid.TimeSeries(t, 0.02 * np.sin(400 * t))
    values = {"m": 5e-6, "c": 2e-4, "k": 1.0, "k3": 4.0, "offset": 0.005}
    ours, theirs = models.silverbox(()), sid.models.duffing(offset=True)
    runs = [sid.simulate(s, record.replace(inputs="F"), values, x0=0.0, substeps=3)["y"].values for s in (ours, theirs)]
    assert_allclose(*runs, rtol=1e-9, atol=1e-15)


def test_the_filter_of_the_generator_attenuates_as_its_coefficients_say(models: ModuleType) -> None:
    hertz, n = 43.0, np.arange(-15, 16)
    y = np.sin(2 * np.pi * hertz * np.arange(400) / 750)
    gain = firwin(31, 1 / 20) @ np.cos(2 * np.pi * hertz * n / 15_000)
    assert 0.99 < gain < 0.999
    assert_allclose(models.decimated(y)[20:-20], gain * y[20:-20], atol=2e-6)
    assert_allclose(models.decimated(np.ones(50)), 1.0, rtol=1e-9)


def test_the_run_of_a_board_from_fit_to_rows(boards: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear oscillator with noise: the right structure is chosen, and its interval holds the samples of the test."""
    rng, t = np.random.default_rng(1), np.arange(600) / 600
    values = {"m": 5e-6, "c": 2e-4, "k": 1.0, "k3": 4.0, "offset": 0.005, "k2": 0.5}
    system = boards.models.silverbox(("k2",))
    u = 0.05 * rng.standard_normal((2, 600))
    y = [sid.simulate(system, sid.TimeSeries(t, v, inputs="F"), values, x0=0.0, substeps=3)["y"].values for v in u]
    noisy = [sid.TimeSeries(t, v, w + 1e-3 * rng.standard_normal(600)) for v, w in zip(u, y, strict=True)]
    bench = sid.datasets.Benchmark("oscillator", (noisy[0],), {"again": noisy[1]}, 50, "mV", 1e3)
    monkeypatch.setattr(boards.sid.datasets, "benchmark", lambda name: bench)
    monkeypatch.setattr(boards, "DRAWS", 32)

    def structures() -> list[object]:
        kept = {"cubic spring, input offset", "+ z^2", "+ z^4, z^5"}
        return [s for s in boards.models.silverbox_structures() if s.name in kept]

    class Nowhere:
        def savefig(self, *args: object, **kwargs: object) -> None:
            """Keep no figure."""

    monkeypatch.setattr(boards, "drawn", lambda *args: Nowhere())
    found = boards.play("oscillator", boards.Board(structures, {}, boards.estimated, short=600), short=False)
    assert found["chosen"] == "+ z^2" and found["counted"] == pytest.approx(1.0, abs=0.2)
    (row,) = found["rows"]
    assert 0.9 < row["rmse"] < 1.15 and 0.86 < row["coverage"] < 0.94
    assert found["effective draws"] > 16
    assert found["structures"]["+ z^2"]["errors"]["again"] == pytest.approx(row["rmse"], rel=0.02)
