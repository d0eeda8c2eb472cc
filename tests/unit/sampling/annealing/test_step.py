"""Data Annealing step by step: schedules, prefixes, proposals, statistics, what is refused, what is drawn."""

from __future__ import annotations

from typing import Any

import cloudpickle
import matplotlib
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pm_sysid as sid
from pm_sysid.likelihood.prefix_target import Prefix
from pm_sysid.sampling.annealing.population import SEARCH, evaluations

matplotlib.use("Agg")

N = 40
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -0.5] + 0.6 * RNG.normal(size=N)


def regression() -> pm.Model:
    with pm.Model() as model:
        slope = pm.Normal("slope", 0.0, 2.0, shape=2)
        noise = pm.HalfNormal("noise", 1.0)
        pm.Potential("bound", -0.5 * (slope[0] - slope[1]) ** 2)
        pm.Normal("y", (X * slope).sum(axis=1), noise, observed=Y)
    return model


MODEL = regression()
START = {"slope": np.array([0.3, 0.2]), "noise_log__": np.array(-0.2)}


def run(step: Any, tune: int, draws: int, seed: int = 0, point: Any = None) -> tuple[list[Any], dict[str, np.ndarray]]:
    """A chain as PyMC runs it: points, and statistics by name."""
    point, points, rows = dict(START if point is None else point), [], []
    step.setup_chain(np.random.default_rng(seed), tune, draws)
    for i in range(tune + draws):
        if i == tune:
            step.stop_tuning()
        point, [row] = step.step(point)
        points.append(point)
        rows.append(row)
    return points, {k: np.array([r[k] for r in rows]) for k in rows[0]}


def annealing(model: pm.Model = MODEL, **options: Any) -> sid.DataAnnealing:
    return sid.DataAnnealing(model=model, **options)


def paper(model: pm.Model = MODEL, **options: Any) -> sid.DataAnnealing:
    """The plain form: samples come in over all of the tuning, and nothing is adapted."""
    return annealing(model, adapt=False, **options)


def terms(point: dict[str, np.ndarray]) -> np.ndarray:
    """Log-likelihood of each sample."""
    noise = np.exp(point["noise_log__"])
    return stats.norm.logpdf(Y, X @ point["slope"], noise)


@pytest.mark.parametrize(
    "schedule, expected",
    [
        ("linear", [2 + int(38 * i / 16) for i in range(16)]),
        ("geometric", [int(2 * 20 ** (i / 16) + 1e-9) for i in range(16)]),
        (lambda f: 1 + 39 * f**2, [int(1 + 39 * (i / 16) ** 2) for i in range(16)]),
    ],
    ids=["linear", "geometric", "function"],
)
def test_the_schedule_sets_the_number_of_samples(schedule: Any, expected: list[int]) -> None:
    step = paper(schedule=schedule)
    for _ in range(2):  # nothing of one chain is left in the next
        _, found = run(step, 16, 5)
        assert found["n_data"].tolist() == expected + [N] * 5


def test_without_tuning_all_samples_are_in() -> None:
    _, found = run(annealing(), 0, 4)
    assert found["n_data"].tolist() == [N] * 4


@pytest.mark.parametrize("options, share", [({}, 0.5), ({"annealed": 0.25}, 0.25), ({"adapt": False, "annealed": 0.25}, 0.25)])
def test_samples_are_in_after_the_share_of_tuning(options: dict[str, Any], share: float) -> None:
    _, found = run(annealing(**options), 40, 3)
    until = int(40 * share)
    assert found["n_data"][:until].tolist() == [2 + int(38 * i / until) for i in range(until)]
    assert np.all(found["n_data"][until:] == N)
    assert np.all(found["scaling"][: until + 1] == 1.0) and (np.unique(found["scaling"]).size > 10) == ("adapt" not in options)
    assert np.unique(found["scaling"][40:]).size == 1


def test_the_adaptive_schedule_bounds_the_drop() -> None:
    """Samples are added up to the first one with which the current point falls behind its average by more than the bound."""
    step = paper(schedule="adaptive", max_drop=1.5, widths=0.05)
    points, found = run(step, 60, 1)
    assert found["n_data"][0] == 2 and found["n_data"][-2] == N
    grown = 0
    for i in range(1, 60):
        before, now = found["n_data"][i - 1], found["n_data"][i]
        if before == N:
            break
        each = terms(points[i - 1])
        drop = np.cumsum(each[:before].mean() - each[before:])
        floor = int(2 * 20 ** (i / 60) + 1e-9)
        if now > max(before, floor):
            assert np.all(drop[: now - before] <= 1.5)
            grown += 1
        elif now < floor:
            raise AssertionError("slower than the geometric schedule")
        if now == before:
            assert drop[0] > 1.5
    assert grown >= 3


def test_an_unexplained_sample_stops_the_adaptive_schedule() -> None:
    y = np.where(np.arange(N) < 6, 0.0, 50.0)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 100.0)
        pm.Normal("y", mu, 1.0, observed=y)
    _, found = run(paper(model, schedule="adaptive", widths=1e-9), 30, 1, point={"mu": np.array(0.0)})
    by_floor = [int(2 * 20 ** (i / 30) + 1e-9) for i in range(30)]
    assert found["n_data"][1] == 6
    assert found["n_data"][1:30].tolist() == np.maximum(6, by_floor[1:]).tolist()


def test_log_densities_are_the_model_s_of_the_prefix() -> None:
    """Also where the log-likelihood was known ahead, and where the point stayed while samples came in."""
    points, found = run(paper(widths=0.3), 30, 20)
    prior = MODEL.compile_logp(vars=[*MODEL.free_RVs, *MODEL.potentials])
    expected = [prior(p) + terms(p)[:n].sum() for p, n in zip(points, found["n_data"], strict=True)]
    np.testing.assert_allclose(found["model_logp"], expected, rtol=1e-10)
    full = MODEL.compile_logp()
    np.testing.assert_allclose(found["model_logp"][30:], [full(p) for p in points[30:]], rtol=1e-10)
    assert 0 < found["accepted"][:30].sum() < 30


def test_statistics() -> None:
    points, found = run(paper(widths=0.1), 40, 200)
    moved = [not np.array_equal(a["slope"], b["slope"]) for a, b in zip([START, *points], points, strict=False)]
    assert found["accepted"].tolist() == moved
    assert np.all((found["accept"] >= 0) & (found["accept"] <= 1)) and np.all(found["scaling"] == 1.0)
    kept = found["evaluations"][41:]
    assert np.all(kept == N)  # one evaluation a draw
    recent = found["accept_rate"][-1]
    assert abs(recent - found["accepted"][-100:].mean()) < 0.15


@pytest.mark.parametrize("schedule, most", [("linear", 0.56), ("geometric", 0.22)])
def test_annealing_costs_about_half_or_less(schedule: Any, most: float) -> None:
    """Evaluations are samples that were really computed: a plain chain takes T of them a draw."""
    T, tune = 1000, 1000
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=np.random.default_rng(0).normal(size=T))
    _, found = run(paper(model, schedule=schedule), tune, 10, point={"mu": np.array(0.0)})
    share = found["evaluations"][:tune].sum() / (tune * T)
    least = found["n_data"][:tune].mean() / T
    print(f"{schedule}: {share:.3f} of the cost of full data")
    assert least <= share < most


def test_proposals_are_independent_cauchy_steps() -> None:
    with pm.Model() as model:
        pm.Flat("a")
        pm.Flat("b", shape=2)
        pm.Normal("y", 0.0, 1.0, observed=[0.0, 0.0])
    start = {"a": np.array(0.0), "b": np.zeros(2)}
    step = paper(model, widths={"a": 2.0, "b": [0.5, 0.1]})
    points, found = run(step, 0, 4000, point=start)
    assert found["accepted"].all()
    path = np.array([[p["a"], *p["b"]] for p in [start, *points]])
    increments = np.diff(path, axis=0) / [2.0, 0.5, 0.1]
    for column in increments.T:
        assert stats.kstest(column, "cauchy").pvalue > 1e-3
    assert stats.spearmanr(np.abs(increments[:, 0]), np.abs(increments[:, 1])).pvalue > 1e-3


@pytest.mark.slow
def test_proposals_adapt_to_the_shape_and_are_then_fixed() -> None:
    """A ridge a thousand times longer than wide, along no axis: independent proposals accept 25 of 10,000 or do not move."""
    angle = 0.6
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    covariance = turn @ np.diag([10.0, 0.01]) ** 2 @ turn.T
    precision = np.linalg.inv(covariance)
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        pm.Potential("ridge", -0.5 * x @ precision @ x)
        pm.Normal("y", 0.0, 1.0, observed=np.zeros(10))
    step = annealing(model, widths=0.1)
    points, found = run(step, 6000, 12_000, point={"x": np.zeros(2)})
    shape = step.shape.root @ step.shape.root.T
    ratio = np.linalg.eigvals(precision @ shape).real
    assert ratio.max() / ratio.min() < 4.0  # of the shape alone, whatever the size
    assert 0.15 < found["accepted"][6000:].mean() < 0.35
    assert np.unique(found["scaling"][6000:]).size == 1 and np.unique(found["scaling"][3000:6000]).size > 1500
    assert np.unique(found["scaling"][:3000]).tolist() == [1.0]
    draws = np.array([p["x"] for p in points[6000:]]) @ turn
    np.testing.assert_allclose(draws.std(axis=0), [10.0, 0.01], rtol=0.2)


@pytest.mark.slow
def test_a_chain_that_has_not_mixed_says_so_at_its_end() -> None:
    """By the log of PyMC, once for each chain; a chain that has mixed says nothing."""
    for step, said in ((paper(widths=1e-4), True), (annealing(widths=0.05), False)):
        point = dict(START)
        step.setup_chain(np.random.default_rng(0), 400, 3000)
        rows = []
        for i in range(3400):
            if i == 400:
                step.stop_tuning()
            point, [row] = step.step(point)
            rows.append(row["warning"] and row["warning"].message)
        assert rows[:-1] == [None] * 3399
        if said:
            assert "a chain has not mixed (R-hat" in rows[-1] and "slope" in rows[-1] and "adapt=True" in rows[-1]
        else:
            assert rows[-1] is None


def sign_unknown(samples: int = 20) -> pm.Model:
    """Two modes, at 1 and -1, alike but for the prior: 69 % of the posterior are at 1."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.4, 1.0)
        pm.Normal("y", x**2, 0.2, observed=1.0 + 0.2 * np.random.default_rng(0).normal(size=samples))
    return model


@pytest.mark.slow
def test_chains_come_to_both_modes_by_proposals_from_all_over() -> None:
    step = annealing(sign_unknown(), widths=0.05)
    for seed in range(4):
        points, found = run(step, 1000, 2000, seed, {"x": np.array(1.0)})
        share = np.mean([p["x"] > 0 for p in points[1000:]])
        assert abs(share - 1 / (1 + np.exp(-0.8))) < 0.08
        assert found["warning"][-1] is None
        assert np.isnan(found["missed"][:-1].astype(float)).all() and found["missed"][-1] == 0
        looked = found["evaluations"][900] - 20
        assert 0 < looked < (1 + SEARCH) * evaluations(3000) * 20 and np.all(np.delete(found["evaluations"][501:], 399) == 20)


def test_the_paper_s_chains_say_that_they_have_missed_a_mode() -> None:
    """They stay in one; what is said at the end changes nothing of them."""
    step = paper(sign_unknown(), widths=0.01)
    points, found = run(step, 500, 2000, 0, {"x": np.array(1.0)})
    assert np.unique([p["x"] > 0 for p in points[500:]]).size == 1
    assert (
        found["missed"][-1] == 1
        and "may have missed a part of the posterior, whatever R-hat says: of x, " in found["warning"][-1].message
    )
    assert found["evaluations"][-1] > 20
    others, point = [], {"x": np.array(1.0)}
    step.setup_chain(np.random.default_rng(0), 500, 2001)  # whose last draw is not made
    for i in range(2500):
        if i == 500:
            step.stop_tuning()
        point, [row] = step.step(point)
        others.append(point)
        assert row["warning"] is None
    assert [p["x"] for p in others] == [p["x"] for p in points]


def direction(angle: float, noise: float) -> pm.Model:
    """An angle, measured by its cosine and sine."""
    y = np.array([np.cos(angle), np.sin(angle)]) + noise * np.random.default_rng(2).standard_normal((10, 2))
    with pm.Model() as model:
        p = pm.VonMises("p", 0.0, 0.3)
        pm.Normal("y", pm.math.stack([pm.math.cos(p), pm.math.sin(p)]), noise, observed=y)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("form", [{"widths": 0.1}, {"widths": 0.3, "adapt": False}], ids=["adapted", "paper"])
@pytest.mark.parametrize("angle, noise", [(0.5, 0.3), (3.1, 0.3), (3.1, 1.5)])
def test_angles_are_in_one_turn_and_raise_no_alarm(angle: float, noise: float, form: Any) -> None:
    """Chains that walked over many turns said that they have not mixed, by coordinates that come back to the same angle."""
    step = annealing(model := direction(angle, noise), **form)
    points, found = run(step, 1000, 2000, 1, {"p_circular__": np.array(20.0)})
    draws = np.array([p["p_circular__"] for p in points[1000:]])
    assert found["warning"][-1] is None and found["missed"][-1] == 0
    grid = np.linspace(-np.pi, np.pi, 2001)
    logp = model.compile_logp()
    weights = np.exp([logp({"p_circular__": p}) - logp({"p_circular__": np.array(angle)}) for p in grid])
    for part in (np.cos, np.sin):
        expected = np.average(part(grid), weights=weights)
        spread = np.sqrt(np.average((part(grid) - expected) ** 2, weights=weights))
        assert abs(part(draws).mean() - expected) < 0.25 * spread
    assert np.ptp(draws[500:]) <= 2 * np.pi + 1e-9


@pytest.mark.slow
def test_the_order_of_the_variables_does_not_matter() -> None:
    """Proposals from all over the posterior had the order of the model, and draws that of the list: chains were doubted."""
    runs = []
    for names in (["slope", "noise"], ["noise", "slope"]):
        runs.append(run(annealing(vars=[MODEL[name] for name in names], widths=0.05), 600, 1400))
    for name in ("model_logp", "missed"):
        np.testing.assert_array_equal(runs[0][1][name].astype(float), runs[1][1][name].astype(float))


@pytest.mark.slow
def test_short_chains_and_parts_of_a_model_have_no_such_proposals() -> None:
    step = annealing(sign_unknown(), widths=0.05)
    for tune, draws in ((199, 300), (0, 3000)):
        _, found = run(step, tune, draws, 0, {"x": np.array(1.0)})
        assert not step.independent.exists and np.isnan(found["missed"][-1])
        assert "too few draws to tell whether other modes were missed" in found["warning"][-1].message
    step = annealing(vars=[MODEL["slope"]], widths=0.1)
    _, found = run(step, 1000, 1000)
    assert not step.independent.exists and np.isnan(found["missed"][-1])
    assert found["warning"][-1] is None or "too few draws" not in found["warning"][-1].message


@pytest.mark.slow
def test_runs_of_some_hundred_draws_come_to_both_modes() -> None:
    """Chains of less than 2000 draws lost a mode without a word."""
    step, shares = annealing(sign_unknown(), widths=0.05), []
    for seed in range(6):
        points, found = run(step, 300, 500, seed, {"x": np.array(1.0)})
        shares.append(np.mean([p["x"] > 0 for p in points[300:]]))
        assert found["evaluations"].sum() < 20 * (2.6 * 800 + 10) and found["missed"][-1] != 1
    assert np.all(np.abs(np.array(shares) - 1 / (1 + np.exp(-0.8))) < 0.25)


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"adapt": False}])
@pytest.mark.parametrize("until", [850, 1500, 2199, 2200])
def test_a_chain_that_was_cut_off_keeps_its_proposals(tmp_path: Any, monkeypatch: Any, until: int, form: Any) -> None:
    """And says the same at its end: cut off before the look over the posterior, after tuning, one draw early, at the end."""
    model, start = sign_unknown(), {"x": np.array(1.0)}
    step = annealing(model, widths=0.05, checkpoint=tmp_path, **form)
    whole, expected = run(annealing(model, widths=0.05, **form), 1000, 1200, 2, start)
    monkeypatch.setattr("pm_sysid.sampling.annealing.draw_log.SECONDS", 1e9)
    step.setup_chain(np.random.default_rng(2), 1000, 1200)
    point = start
    for i in range(until):
        if i == 1000:
            step.stop_tuning()
        if i == until - 1:
            monkeypatch.setattr("pm_sysid.sampling.annealing.draw_log.SECONDS", 0.0)
        point, _ = step.step(point)
    step.log.file.release()
    monkeypatch.setattr("pm_sysid.sampling.annealing.draw_log.SECONDS", 1e9)
    points, found = run(annealing(model, widths=0.05, checkpoint=tmp_path, **form), 1000, 1200, 2, start)
    assert [p["x"] for p in points] == [p["x"] for p in whole]
    assert found["warning"][-1] == expected["warning"][-1]
    np.testing.assert_array_equal(found["missed"].astype(float), expected["missed"].astype(float))


def test_another_step_method_may_move_the_rest() -> None:
    """A variable that changes between calls is noticed: log-densities are those of the point as it is."""
    step = annealing(vars=[MODEL["slope"]], widths=0.1)
    step.setup_chain(np.random.default_rng(0), 10, 10)
    rng, full, point = np.random.default_rng(1), MODEL.compile_logp(), START
    for i in range(20):
        if i == 10:
            step.stop_tuning()
        point = {**point, "noise_log__": point["noise_log__"] + (0.1 * rng.normal() if i % 2 else 0.0)}
        noise = point["noise_log__"]
        point, [row] = step.step(point)
        assert point["noise_log__"] == noise
        if i >= 10:
            assert row["model_logp"] == pytest.approx(full(point))


def test_a_chain_goes_on_from_its_state_and_after_pickling() -> None:
    step, point = annealing(widths=0.1, adapt=True), START
    step.setup_chain(np.random.default_rng(3), 20, 20)
    for _ in range(11):
        point, _ = step.step(point)
    state, other = step.sampling_state, cloudpickle.loads(cloudpickle.dumps(step))
    third = annealing(widths=0.1, adapt=True)
    third.setup_chain(np.random.default_rng(9), 20, 20)
    third.sampling_state = state
    ends = []
    for each in (step, other, third):
        p = point
        for i in range(11, 40):
            if i == 20:
                each.stop_tuning()
            p, [row] = each.step(p)
        ends.append((p["slope"], row["scaling"], row["model_logp"]))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    np.testing.assert_array_equal(ends[0][0], ends[2][0])
    assert ends[0][1:] == ends[1][1:] == ends[2][1:]


def test_samples_that_see_the_whole_run_are_evaluated_in_full() -> None:
    """A simulation less its mean: its first samples need all of it. One that does not is run no further than asked for."""
    decay = sid.System(
        lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    t = np.linspace(0.0, 2.0, 31)
    y = np.exp(-t)
    for whole in (False, True):
        with pm.Model() as model:
            rate = pm.LogNormal("rate")
            mean = sid.simulate(decay, sid.TimeSeries(t, None, None), dict(rate=rate), x0=1.0, substeps=2)
            pm.Normal("y", mean - mean.mean() if whole else mean, 0.1, observed=y - y.mean() if whole else y)
        found, q = Prefix(model).evaluate(np.array([0.3]), 9, 14), np.exp(0.3)
        each = model.compile_logp(vars=model.observed_RVs, sum=False)({"rate_log__": 0.3})[0]
        np.testing.assert_allclose(found.path, np.cumsum(each)[8:14], rtol=1e-9)
        run = np.exp(-q * t)
        np.testing.assert_allclose(each, stats.norm.logpdf(y - y.mean() * whole, run - run.mean() * whole, 0.1), atol=1e-4)


def test_impossible_points_are_minus_infinity() -> None:
    prefix = Prefix(MODEL)
    assert prefix.evaluate(np.array([np.nan, 0.0, 0.0]), 5).prior == -np.inf
    assert np.all(prefix.evaluate(np.array([0.0, 0.0, -1e4]), 5, 9).path == -np.inf)
    points, found = run(annealing(widths=1e6), 5, 50)
    assert not np.any(np.isnan(found["accept"])) and np.all(np.isfinite(found["model_logp"]))
    assert all(np.all(np.isfinite(p["slope"])) for p in points)


@pytest.mark.parametrize(
    "options, error, message",
    [
        (dict(widths=-1.0), ValueError, "widths of 'slope' is -1.0; widths must be positive"),
        (dict(widths=np.nan), ValueError, "widths of 'slope' is nan; widths must be positive"),
        (dict(widths={"slop": 0.1}), ValueError, r"widths has the unknown name 'slop'; .* \['slope', 'noise'\]"),
        (dict(widths={"slope": [1.0, 2.0, 3.0]}), ValueError, r"widths of 'slope' is .*; give .* the shape \(2,\)"),
        (dict(widths="wide"), ValueError, "widths of 'slope' is 'wide'; give a positive number"),
        (dict(schedule="quadratic"), ValueError, "schedule is 'quadratic'; give 'linear', 'geometric', 'adaptive'"),
        (dict(schedule=lambda f: 100), ValueError, r"schedule\(0\) is 100; return a number of samples from 1 to 40"),
        (dict(schedule=lambda f: None), ValueError, r"schedule\(0\) is None; return a number"),
        (dict(schedule=lambda f: 30 - 20 * f), ValueError, r"schedule\(0.01\) is 29 after 30 before; samples must not"),
        (dict(n_start=0), ValueError, "n_start is 0; give a number of samples from 1 to 40"),
        (dict(n_start=2.5), TypeError, "n_start is 2.5; give a whole number"),
        (dict(adapt="yes"), TypeError, "adapt is 'yes'; give True or False"),
        (dict(annealed=0.0), ValueError, "annealed is 0.0; give a share of the tuning draws between 0 and 1"),
        (dict(annealed=1), ValueError, "annealed is 1, which leaves no draw for adaptation; give a smaller share"),
        (dict(adapt_widths=True), TypeError, "no argument 'adapt_widths'; it has widths, schedule, n_start, adapt"),
        (dict(max_drop=0), ValueError, "max_drop is 0; give a positive number"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        annealing(**options)


def test_one_sample_is_there_from_the_first_draw_on() -> None:
    """Of a likelihood of one number nobody has to say so."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=0.3)
    _, rows = run(annealing(model), 20, 5, point={"mu": np.array(0.0)})
    assert np.all(rows["n_data"] == 1) and annealing().n_start == 2
    with pytest.raises(ValueError, match="n_start is 2; give a number of samples from 1 to 1, which the model has"):
        annealing(model, n_start=2)


# -- figure -----------------------------------------------------------------------------------------------------------


def tree(warmup: bool = True) -> xr.DataTree:
    rng = np.random.default_rng(0)
    dims = ("chain", "draw")
    n_data, accept = np.tile(np.linspace(2, 50, 30), (2, 1)), rng.random((2, 30))
    groups = {
        "posterior": xr.Dataset({"k": (dims, rng.normal(size=(2, 100)))}),
        "sample_stats": xr.Dataset({"n_data": (dims, np.full((2, 100), 50)), "accept_rate": (dims, rng.random((2, 100)))}),
    }
    if warmup:
        groups["warmup_posterior"] = xr.Dataset({"k": (dims, rng.normal(size=(2, 30)))})
        groups["warmup_sample_stats"] = xr.Dataset({"n_data": (dims, n_data), "accept_rate": (dims, accept)})
    return xr.DataTree.from_dict(groups)


def test_plot_draws_both_phases() -> None:
    idata = tree()
    samples, acceptance, k = sid.plot_annealing(idata, truth={"k": 0.5}, chain=1)
    # The chain asked for is on top.
    np.testing.assert_allclose(samples[0].lines[-1].get_ydata(), np.linspace(2, 50, 30))
    np.testing.assert_allclose(samples[1].lines[-1].get_ydata(), 50)
    for panel, group, draws in zip(k, ("warmup_posterior", "posterior"), [(1, 30), (31, 130)], strict=True):
        np.testing.assert_allclose(panel.lines[1].get_ydata(), idata[group]["k"][1])
        assert panel.lines[-1].get_label() == "truth" and panel.lines[-1].get_ydata()[0] == 0.5
        assert panel.get_xlim() == draws
    assert [p.get_ylabel() for p in (samples[0], acceptance[0], k[0])] == ["samples", "acceptance", "k"]
    assert [p.get_title() for p in samples] == ["annealing", "after"]
    (legend,) = k[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["other chains", "chain 1", "truth"]
    k[0].figure.canvas.draw()
    matplotlib.pyplot.close(k[0].figure)


def test_plot_without_the_annealing_phase() -> None:
    panels = sid.plot_annealing(tree(warmup=False))
    assert panels.shape == (3, 1) and panels[0, 0].get_xlim() == (1, 100)
    matplotlib.pyplot.close(panels[0, 0].figure)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(var_names="m"), "no scalar parameter 'm'; it has k"),
        (dict(truth={"c": 1.0}), "no scalar parameter 'c'; it has k"),
        (dict(chain=2), "chain is 2; there are 2"),
    ],
)
def test_plot_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sid.plot_annealing(tree(), **change)
    with pytest.raises(ValueError, match="no statistic 'n_data'"):
        sid.plot_annealing(xr.DataTree.from_dict({"posterior": xr.Dataset()}))
