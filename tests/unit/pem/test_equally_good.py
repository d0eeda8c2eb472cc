"""Other unknowns with the same outputs, which starts at random miss where a free run is long."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.equally_good import _lengths, equally_good, free_run
from pm_sysid.pem.side_by_side import Coordinates, End

#: Two masses, the second known and pushed, the first measured: (k1, k2, m1) and (k1, k1/m1, k1/k2) have the same outputs.
CHAIN = sid.System(
    lambda t, x, u, p: (x.v1, x.v2, (-p.k1 * x.x1 - p.k2 * (x.x1 - x.x2)) / p.m1, u.F - p.k2 * (x.x2 - x.x1)),
    states=("x1", "x2", "v1", "v2"), inputs=("F",), params=("k1", "k2", "m1"), observe=lambda t, x, dx, u, p: x.x1,
)  # fmt: skip
TRUTH = {"k1": 20.0, "k2": 30.0, "m1": 1.0}
OTHER = np.array([20.0, 20.0, 2 / 3])


def record(n: int, seed: int, noise: float = 0.0, quiet: int = 0) -> sid.TimeSeries:
    """Pushes of half a second after ``quiet`` samples without any."""
    rng = np.random.default_rng(seed)
    force = np.repeat(rng.normal(size=n // 10 + 1), 10)[:n] * (np.arange(n) >= quiet)
    data = sid.TimeSeries(0.05 * np.arange(n), force, None, inputs="F", intersample="zoh")
    y = sid.simulate(CHAIN, data, TRUTH, x0=0.0, substeps=8)["y"].to_numpy()
    return data.replace(y=y + noise * rng.standard_normal(n))


def fitted(data: sid.TimeSeries | list[sid.TimeSeries], **options: object) -> sid.PEMResult:
    """From the true parameters, by one search."""
    return sid.fit_pem(
        CHAIN, data, TRUTH, predictor=sid.ExtendedKalman(substeps=8, **options), x0=0.0, starts=1, progressbar=False
    )


def missing(data: sid.TimeSeries, share: float) -> sid.TimeSeries:
    """Without the first samples, and without a share of all others."""
    lost = np.random.default_rng(1).random(len(data)) < share
    return data.replace(y=np.where(lost | (np.arange(len(data)) < 30), np.nan, data.y))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["one", "two records", "missing", "quiet", "no noise"])
def test_the_second_solution_is_found(kind: str, seed: int) -> None:
    noise = 0.0 if kind == "no noise" else 0.005
    first = record(300, seed, noise, quiet=100 if kind == "quiet" else 0)
    data = (
        [first, record(120, seed + 50, noise)] if kind == "two records" else missing(first, 0.3) if kind == "missing" else first
    )
    fit = fitted(data)
    starts = fit.x * np.exp(np.random.default_rng(seed).uniform(-2.3, 2.3, (28, 3)))
    found, _ = equally_good(fit.target, fit.x, starts, np.zeros(3), np.full(3, np.inf))
    assert found.shape == (1, 3) and np.abs(found - OTHER).max() < 0.1 * np.abs(OTHER - fit.x).max()
    assert fit.target.values(found)[0] == pytest.approx(fit.fun, rel=1e-2, abs=1e-9)


def test_one_whose_solution_is_the_only_one_has_no_other() -> None:
    """The mass is known too."""
    fit = sid.fit_pem(
        CHAIN, record(300, 0, 0.005), {"k1": 20.0, "k2": 30.0}, fixed={"m1": 1.0}, x0=0.0, starts=1, progressbar=False
    )
    starts = fit.x * np.exp(np.random.default_rng(0).uniform(-2.3, 2.3, (28, 2)))
    found, _ = equally_good(fit.target, fit.x, starts, np.zeros(2), np.full(2, np.inf))
    assert found.shape == (0, 2)


def test_a_filter_that_corrects_is_no_free_run() -> None:
    data = record(100, 0, 0.005)
    assert free_run(fitted(data).target) and not free_run(fitted(data, Q=1e-4, R=1e-4).target)
    with pytest.raises(AssertionError):
        equally_good(fitted(data, Q=1e-4, R=1e-4).target, np.ones(3), np.ones((1, 3)), np.zeros(3), np.ones(3))


def test_first_samples_hold_turns_and_measurements() -> None:
    wave = np.sin(2 * np.pi * np.arange(400) / 20)[:, None]  # turns every ten samples
    assert _lengths([wave], 9) == [17, 77, 317]
    lost = wave.copy()
    lost[:50] = np.nan
    assert _lengths([lost], 9)[0] >= 59
    assert _lengths([wave[:15]], 9) == [15]
    assert _lengths([wave[:30], wave[:100]], 9) == [17, 77, 100]
    assert _lengths([np.zeros((40, 2))], 9) == [40]


def test_two_solutions_are_a_doubt() -> None:
    """From a guess near the wrong one."""
    for seed in range(3):
        fit = sid.fit_pem(
            CHAIN, record(300, seed, 0.005), {"k1": 20.0, "k2": 21.0, "m1": 0.7}, x0=0.0, progressbar=False
        )  # fmt: skip
        assert not fit.success and "Another optimum is nearly as good" in fit.message


def test_of_long_first_samples_fewer_searches_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solution that turns late takes all of its samples from the first on."""
    fit, seen = fitted(record(300, 0, 0.005)), list[tuple[int, int]]()

    def explore(coordinates: Coordinates, starts: np.ndarray, known: Callable[..., bool]) -> tuple[list[End], int]:
        seen.append((coordinates.objective.measured.shape[0], len(starts)))
        return [], 0

    monkeypatch.setattr("pm_sysid.pem.equally_good.explore", explore)
    for samples in (100_000, 300):
        monkeypatch.setattr("pm_sysid.pem.equally_good.SAMPLES", samples)
        equally_good(fit.target, fit.x, np.ones((28, 3)), np.zeros(3), np.full(3, np.inf))
    (length, most), (again, fewer) = seen
    assert again == length < 100 and most == 28 and fewer == max(8, 300 // length)
