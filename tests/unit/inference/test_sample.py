"""The posterior in one call: which sampler it takes, what it says of itself, and that it is right where it is hard."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.special import softmax
from scipy.stats import norm
from scipy.stats import t as student_t

import pm_sysid as sid
from pm_sysid.inference import linearised
from pm_sysid.inference import sample as module
from pm_sysid.likelihood.mode import Mode
from pm_sysid.posterior.initial_state_check import InitialStateCheck
from pm_sysid.sampling.smc.across_modes import AcrossModes
from pm_sysid.sampling.smc.around_mode import sample_around_mode
from support import tiny

QUIET: dict[str, Any] = {"random_seed": 1, "progressbar": False, "cores": 1, "chains": 2}


def line() -> pm.Model:
    """Conjugate: the mean has the posterior N(100 / 101 of the mean of y, 1 / 101)."""
    y = 0.3 + np.random.default_rng(0).standard_normal(100)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=y)
    return model


def two_modes() -> pm.Model:
    """The sign of a is not measured; its prior prefers the positive one by exp(1.2) to one."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.6, 1.0)
        pm.Normal("y", a**2, 0.1, observed=1.0 + 0.1 * np.random.default_rng(0).standard_normal(50))
    return model


def test_nuts_where_there_is_one_mode() -> None:
    model = line()
    idata = sid.sample(model, 500, **QUIET)
    y = model.rvs_to_values[model["y"]].eval()
    assert idata.attrs["method"] == "nuts" and idata.attrs["trusted"] == 1 and idata.attrs["modes"] == 1
    assert idata.attrs["verdict"] == "Nothing is known against these draws." and "NUTS" in idata.attrs["choices"]
    draws = idata.posterior["mu"].values
    assert abs(draws.mean() - y.sum() / 101) < 4 * 0.1 / np.sqrt(300) and draws.std() == pytest.approx(101**-0.5, rel=0.15)


def lag(added: float, told: Any, size: float = 0.0, outlier: float = 0.0) -> pm.Model:
    """A lag under a held input, told to be so or not, whose sensor adds an offset, an outlier, or more noise than is known."""
    system = sid.System(
        lambda t, x, u, p: p.rate * (u.F - x.y),
        states=("y",),
        inputs=("F",),
        params=("rate",),
        observe=lambda t, x, dx, u, p: x.y,
    )
    rng, t = np.random.default_rng(0), np.arange(80) / 4.0
    held = sid.TimeSeries(t, rng.standard_normal(80), None, inputs="F", intersample="zoh")
    y = sid.simulate(system, held, {"rate": 1.0}, x0=0.0, substeps=4)["y"].to_numpy()
    y = y + added + 0.05 * max(size, 1.0) * rng.standard_normal(80) + outlier * (np.arange(80) == 40)
    record = held.replace(y=y, intersample=told)
    with pm.Model() as model:
        noise = 0.05 if size or outlier else pm.HalfNormal("s")
        sid.ODEFilter("y", system, record, {"rate": pm.LogNormal("rate")}, noise=noise, x0=0.0, substeps=4)
    return model


@pytest.mark.slow
def test_a_model_that_the_record_contradicts_is_named() -> None:
    """The draws are those of its posterior; what is wrong is the model."""
    right, off, late = (sid.sample(lag(*case), 1000, **QUIET) for case in ((0.0, "zoh"), (0.1, "zoh"), (0.0, "bl")))
    assert right.attrs["verdict"] == "Nothing is known against these draws."
    assert off.attrs["trusted"] == 1 and "innovations of y are not centred on zero" in off.attrs["verdict"]
    assert (
        late.attrs["trusted"] == 1
        and "times as likely with intersample='zoh' as with intersample='bl'" in late.attrs["verdict"]
    )


@pytest.mark.slow
def test_noise_of_another_size_and_outliers_are_named() -> None:
    """Which inputs were blamed for: likelihoods differ by more where the noise is larger than the model says."""
    three, one = sid.sample(lag(0.0, "zoh", 3.0), 500, **QUIET), sid.sample(lag(0.0, "zoh", outlier=0.4), 500, **QUIET)
    assert three.attrs["trusted"] == one.attrs["trusted"] == 1
    assert "times as large as it says" in three.attrs["verdict"] and "between the samples" not in three.attrs["verdict"]
    assert "an innovation of y is" in one.attrs["verdict"] and "an outlier" in one.attrs["verdict"]


def test_sequential_sampling_where_there_are_several() -> None:
    idata = sid.sample(two_modes(), 1000, **QUIET | {"chains": 3})
    assert idata.attrs["method"] == "ibis" and idata.attrs["modes"] == 2, idata.attrs
    assert idata.posterior.sizes["chain"] == 3  # as many as asked for, whatever the cores
    share = float((idata.posterior["a"] > 0).mean())
    assert share == pytest.approx(1 / (1 + np.exp(-1.2)), abs=0.06)
    assert sid.log_evidence(idata).doubt == ""


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
def test_modes_that_hold_little_have_their_shares(moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares of three unknowns: each is negative with a probability of 3 %; also by draws that take the place of others."""
    if moved:
        monkeypatch.setattr(AcrossModes, "moved", lambda self, draws: True)
    y = np.array([1.0, 1.05, 0.98])
    with pm.Model() as model:
        x = pm.Normal("x", 0.87, 0.7, shape=3)
        pm.Normal("y", x**2, 0.05, observed=y)
    grid = np.linspace(-2, 2, 40_001)[:, None]
    density = np.exp(-0.5 * ((grid - 0.87) / 0.7) ** 2 - 0.5 * ((y - grid**2) / 0.05) ** 2)
    negative = np.sum(density * (grid < 0), axis=0) / np.sum(density, axis=0)
    idata = sid.sample(model, 1000, **QUIET | {"chains": 4, "random_seed": 13})
    replaced = "draws are taken around the modes" in idata.attrs["choices"]
    assert idata.attrs["method"] == "ibis" and (replaced or not moved)
    np.testing.assert_allclose((idata.posterior["x"] < 0).mean(("chain", "draw")), negative, rtol=0.12 if replaced else 0.3)
    found = sid.log_evidence(idata)
    constants = np.sum(density, axis=0) * 1e-4 / (2 * np.pi * 0.7 * 0.05)
    assert found.value == pytest.approx(float(np.log(constants).sum()), abs=3 * found.error)


def test_nuts_by_order_says_that_there_is_another_mode() -> None:
    with pytest.warns(UserWarning, match="There are 2 modes, and NUTS stays in the one it starts in"):
        idata = sid.sample(two_modes(), 300, method="nuts", **QUIET)
    assert idata.attrs["trusted"] == 0 and "cannot be trusted" in idata.attrs["verdict"]


@pytest.mark.slow
def test_independent_proposals_by_order_begin_around_all_modes_or_doubt_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    idata = sid.sample(two_modes(), 1000, method="independent", **QUIET)
    share = float((idata.posterior["a"] > 0).mean())
    assert idata.attrs["trusted"] == 1 and share == pytest.approx(1 / (1 + np.exp(-1.2)), abs=0.06)
    monkeypatch.setattr(module, "MOST_MODES", 1)
    said = "There are 2 modes, and the proposals do not begin around all of them"
    with pytest.warns(UserWarning, match=said):
        idata = sid.sample(two_modes(), 300, method="independent", **QUIET)
    assert idata.attrs["trusted"] == 0 and f"{said}." in sid.log_evidence(idata).doubt


def squared_rate() -> pm.Model:
    """A rate that is squared, so that its sign is told by the prior alone."""
    with pm.Model() as model:
        root = pm.Normal("root", 0.3, 0.6)
        sid.ODEFilter("y", tiny.DECAY, tiny.RECORD, {"rate": root**2}, noise=0.05, x0=1.0, substeps=2)
    return model


def test_proposals_for_a_filter_begin_around_all_modes() -> None:
    idata = sid.sample(squared_rate(), 1000, **QUIET | {"chains": 4})
    grid = np.linspace(-2, 2, 2001)[:, None]
    target = sid.Target(squared_rate(), 1)
    density = target.log_prior(grid) + target.log_likelihood(grid)
    weights = np.exp(density - density.max())
    share = weights[grid[:, 0] < 0].sum() / weights.sum()
    assert 0.05 < share < 0.4 and idata.attrs["method"] == "independent" and idata.attrs["trusted"] == 1
    assert "independent proposals, fitted around 2 modes" in idata.attrs["choices"]
    assert float((idata.posterior["root"] < 0).mean()) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 4000))
    found, exact = sid.log_evidence(idata), float(np.log(weights.sum() * 0.002) + density.max())
    assert found.doubt == "" and found.value == pytest.approx(exact, abs=4 * found.error + 1e-3)


@pytest.mark.slow
def test_sequential_sampling_takes_over_where_proposals_around_all_modes_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    against = module._Run.against

    def poor(run: Any, idata: Any, method: str) -> list[str]:
        return ["They do not fit."] if method == "independent" else against(run, idata, method)

    monkeypatch.setattr(module._Run, "against", poor)
    idata = sid.sample(squared_rate(), 500, **QUIET)
    assert (
        idata.attrs["method"] == "ibis" and "They do not fit.); sequential sampling takes their place" in idata.attrs["choices"]
    )


def test_too_few_draws_are_said() -> None:
    with pytest.warns(UserWarning, match="effective draws"):
        idata = sid.sample(line(), 50, **QUIET)
    assert idata.attrs["trusted"] == 0


@pytest.mark.slow
def test_a_funnel_is_not_trusted_or_left_to_sequential_sampling() -> None:
    """Divergences: NUTS is given up, and what remains is right or says that it is not."""
    with pm.Model() as model:
        scale = pm.Normal("scale", 0, 3)
        x = pm.Normal("x", 0, pm.math.exp(scale / 2), shape=5)
        pm.Normal("y", x, 10.0, observed=np.zeros(5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = sid.sample(model, 500, **QUIET)
    wrong = abs(float(idata.posterior["scale"].std()) - 3.0) > 1.0
    assert not (wrong and idata.attrs["trusted"])


def test_warnings_of_the_mode_search_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def worried(*args: Any, **options: Any) -> Any:
        warnings.warn("the search has seen something", stacklevel=1)
        return sid.find_mode(*args, **options)

    monkeypatch.setattr(module, "find_mode", worried)
    with pytest.warns(UserWarning, match="cannot be trusted.*the search has seen something"):
        idata = sid.sample(line(), 500, **QUIET)
    assert idata.attrs["trusted"] == 0 and "the search has seen something" in idata.attrs["choices"].splitlines()


def interpolated() -> pm.Model:
    """PyTensor has numba run the spline of the prior's density in object mode, and warns of that."""
    grid = np.linspace(0.2, 3.0, 201)
    with pm.Model() as model:
        rate = pm.Interpolated("rate", grid, np.exp(-((grid - 1) ** 2)))
        sid.ODEFilter("y", tiny.DECAY, tiny.RECORD, {"rate": rate}, noise=0.05, x0=1.0, substeps=2)
    return model


def test_how_functions_are_compiled_says_nothing_against_draws() -> None:
    model = interpolated()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pytensor.function(model.value_vars, model.logp(vars=model.free_RVs), mode="NUMBA")
        warnings.warn("the search has seen something", stacklevel=1)
    assert any("object mode" in str(w.message) for w in caught)
    assert module._said(caught) == "the search has seen something"


@pytest.mark.slow
def test_an_interpolated_prior_is_no_reason_not_to_trust_the_draws() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = sid.sample(interpolated(), 500, **QUIET)
    assert idata.attrs["trusted"] == 1, idata.attrs["verdict"]


@pytest.mark.slow
def test_it_says_when_the_last_draws_still_needed_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def never_enough(self: Any, at: Any, where: str) -> bool:
        judged.append(where)
        return where == "on the posterior"

    monkeypatch.setattr(module._Run, "_more_steps", never_enough)
    with pytest.warns(UserWarning, match="The posterior needs more steps than it was drawn with: sample again."):
        idata = sid.sample(line(), 400, method="nuts", tune=200, **QUIET)
    assert judged == ["at the mode"] + ["on the posterior"] * 3 and idata.attrs["trusted"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_half_of_the_mass_in_a_narrow_spike_is_not_lost_without_a_word(seed: int) -> None:
    """It fills a ten-thousandth of the prior; the other half lies on a wide hill."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 5, shape=2)

        def logp(value: Any, a: Any, b: Any) -> Any:
            narrow = ((a - 2) ** 2 + (b - 2) ** 2) / 0.03**2 + 4 * np.log(0.03)
            return pm.math.logaddexp(-((a + 2) ** 2 + (b + 2) ** 2) / 2, -narrow / 2)

        pm.CustomDist("y", x[0], x[1], logp=logp, observed=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it may doubt itself
        idata = sid.sample(model, 1000, **QUIET | {"random_seed": seed, "chains": 4})
    share = np.mean(idata.posterior["x"].values[..., 0] > 1.5)
    assert idata.attrs["method"] == "ibis" and idata.attrs["modes"] == 2
    assert not idata.attrs["trusted"] or abs(share - 0.508) < 0.1


def test_what_two_checks_say_of_the_steps_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = module._Run(line(), 600, 100, 2, 1, 1, False)
    run.prepare()
    idata = run._nuts()
    run.trouble, run.steps_trouble = "The search stopped. Too few steps.", "Too few steps."
    reasons = run._judged(idata, "nuts").reasons
    assert "Too few steps." not in reasons and run.trouble in reasons
    # Sequential sampling does not depend on the search, but on the steps.
    monkeypatch.setattr(run, "against", lambda *args: [])
    assert run._judged(idata, "ibis").reasons == ["Too few steps."]


@pytest.mark.slow
def test_a_parameter_that_was_measured_directly_counts_in_every_sampler() -> None:
    """Beside the mean of a hundred samples there is one number for the unknown itself: conjugate."""
    model = line()
    with model:
        pm.Normal("measured", model["mu"], 0.05, observed=0.5)
    y = model.rvs_to_values[model["y"]].eval()
    precision = 1 + 100 + 400
    for method in ("nuts", "independent", "ibis"):
        idata = sid.sample(model, 1000, method=method, **QUIET)
        draws = idata.posterior["mu"].values
        assert idata.attrs["trusted"] and abs(draws.mean() - (y.sum() + 200) / precision) < 0.2 * precision**-0.5
        assert 0.9 < draws.std() * precision**0.5 < 1.1


@pytest.mark.slow
def test_a_mode_without_the_curvature_of_a_maximum_gets_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    best, other = sid.find_mode(two_modes(), random_seed=1, progressbar=False).modes
    plain = np.exp(other.log_evidence - best.log_evidence)

    def found(evidence: float) -> Any:
        mode = sid.find_mode(two_modes(), random_seed=1, progressbar=False)
        return replace(mode, modes=(mode.modes[0], replace(mode.modes[1], log_evidence=evidence)))

    np.testing.assert_allclose(found(other.log_evidence).shares, [1 / (1 + plain), plain / (1 + plain)])
    np.testing.assert_allclose(found(np.nan).shares, [0.5, 0.5])
    np.testing.assert_allclose(found(-np.inf).shares, [0.5, 0.5])
    # It decides: two such modes are not left to NUTS, one without mass is.
    for evidence, expected in ((np.nan, "ibis"), (best.log_evidence - 50.0, "nuts")):
        monkeypatch.setattr(module, "find_mode", lambda *args, value=evidence, **options: found(value))
        run = module._Run(two_modes(), 100, 100, 2, 1, 1, False)
        run.prepare()
        assert run.choice() == expected


def test_the_linearisation_about_an_uncertain_start_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    cubic = sid.System(
        lambda t, x, u, p: -p.rate * x.level**3, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    with pm.Model() as model:
        params = {"rate": pm.LogNormal("rate", 0.0, 0.5)}
        sid.ODEFilter("y", cubic, tiny.RECORD, params, noise=0.05, x0=1.0, x0_std=0.01, substeps=2)
    rate = np.random.default_rng(1).normal(1.0, 0.05, (2, 100))
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"rate": (("chain", "draw"), rate)})})
    run = module._Run(model, 100, 100, 2, 1, 1, False)
    assert run._linearised(idata, "nuts")[0] == []
    assert run.choices[0].startswith(
        "the initial state of 'y' is marginalised linearised: With the initial state integrated out"
    )
    bad = InitialStateCheck(np.zeros(9), {"rate": 0.9}, {"rate": 1.0}, 0.7, 1.0)
    monkeypatch.setattr(linearised, "check_initial_state", lambda *args, **options: bad)
    assert run._linearised(idata, "nuts")[0] == [bad.verdict] and "biases the posterior. Make the initial state" in bad.verdict
    assert run.remarks == []
    asked = list[int]()
    seen = InitialStateCheck(np.zeros(9), {"rate": 0.2}, {"rate": 1.0}, 0.9, 1.0)

    def look(*args: Any, **options: Any) -> InitialStateCheck:
        asked.append(options.get("draws", 100))
        return seen

    monkeypatch.setattr(linearised, "check_initial_state", look)
    assert run._linearised(idata, "nuts") == ([], []) and asked == [100, 1000]
    idata["sample_stats"] = xr.DataTree(xr.Dataset())
    attrs = run.finished(module._Drawn(idata, "nuts", [], [], [])).attrs
    assert (
        attrs["trusted"] == 1
        and "would move by 0.2 posterior standard deviations: the linearisation can be seen" in attrs["verdict"]
    )


def test_what_linearising_costs_the_evidence_enters_with_its_chance() -> None:
    """A change of zero by chance is no proof that there is none."""
    change = np.array([-0.4, 0.4, 0.0, -0.4, 0.4])
    check = InitialStateCheck(change - np.log(np.mean(np.exp(change))), {"rate": 0.0}, {"rate": 1.0}, 0.9, 1.0)
    assert check.evidence == pytest.approx(0.0, abs=1e-12)
    weights = np.exp(change) / np.exp(change).sum()
    assert check.evidence_error == pytest.approx(np.sqrt(np.sum(weights**2) - 0.2)) and check.evidence_error > 0.1
    assert InitialStateCheck(np.zeros(1), {"rate": 0.0}, {"rate": 1.0}, 1.0, 1.0).evidence_error == np.inf


@pytest.mark.slow
def test_one_seed_gives_one_result_that_can_be_saved(tmp_path: Any) -> None:
    results = [sid.sample(line(), 600, tune=200, **QUIET | {"cores": cores}) for cores in (1, 2)]
    np.testing.assert_array_equal(*(r.posterior["mu"].values for r in results))
    results[0].to_netcdf(tmp_path / "posterior.nc")


def decay() -> pm.Model:
    """A filter whose rate is unknown."""
    with pm.Model() as model:
        sid.ODEFilter("y", tiny.DECAY, tiny.RECORD, {"rate": pm.LogNormal("rate", 0.0, 0.5)}, noise=0.05, x0=1.0, substeps=2)
    return model


@pytest.mark.slow
def test_a_draw_that_is_higher_than_the_mode_is_where_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that is squared: its sign is unknown, and the prior prefers the one that the first search does not find."""
    with pm.Model() as model:
        root = pm.Normal("root", 0.5, 0.1)
        sid.ODEFilter("y", tiny.DECAY, tiny.RECORD, {"rate": root**2}, noise=0.05, x0=1.0, substeps=2)
    searches = []

    def one_search(model: pm.Model, **options: Any) -> sid.Mode:
        start = options.pop("start", {"root": -0.8})
        searches.append(float(start["root"]))
        return sid.find_mode(model, **{**options, "start": start, "prior_draws": 0})

    monkeypatch.setattr(module, "find_mode", one_search)
    idata = sid.sample(model, 500, **QUIET)
    assert len(searches) == 2 and searches[1] > 0 and "higher than at the mode" in idata.attrs["choices"]
    assert idata.attrs["trusted"] == 1 and np.all(idata["posterior"]["root"].values > 0)


@pytest.mark.slow
def test_independent_proposals_for_a_model_with_a_filter() -> None:
    model = decay()
    idata = sid.sample(model, 500, **QUIET)
    assert idata.attrs["method"] == "independent" and idata.attrs["trusted"] == 1, idata.attrs
    value = sid.log_evidence(idata)
    assert value.doubt == "" and value.error < 0.05
    # The same by another way.
    other = sid.sample(model, 600, method="nuts", tune=300, **QUIET)
    assert other.attrs["method"] == "nuts"
    a, b = (np.ravel(i.posterior["rate"]) for i in (idata, other))
    assert abs(a.mean() - b.mean()) < 0.25 * b.std() and a.std() == pytest.approx(b.std(), rel=0.2)


@pytest.mark.slow
def test_nuts_where_independent_proposals_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GOOD_PROPOSALS", 2.0)
    model = decay()
    idata = sid.sample(model, 600, tune=300, **QUIET)
    assert idata.attrs["method"] == "nuts" and idata.attrs["trusted"] == 1
    assert "independent proposals are given up (Independent proposals do not fit the posterior" in idata.attrs["choices"]
    with pytest.warns(UserWarning, match="cannot be trusted.*do not fit the posterior"):
        alone = sid.sample(model, 500, method="independent", **QUIET)
    assert alone.attrs["method"] == "independent"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), [("proposal_ess", 0.2), ("pareto_k", 0.6)])
def test_one_chain_whose_proposals_do_not_fit_is_enough_to_give_them_up(name: str, value: float) -> None:
    idata = sample_around_mode(np.zeros(1), 0.01 * np.eye(1), 500, model=decay(), chains=2, random_seed=1, progressbar=False)
    run = module._Run(decay(), 500, 100, 2, 1, 1, False)
    assert not any("do not fit" in reason for reason in run.against(idata, "independent"))
    statistics = idata["sample_stats"].to_dataset().copy(deep=True)
    statistics[name][1, -1] = value
    idata["sample_stats"] = xr.DataTree(statistics)
    assert any("Independent proposals do not fit the posterior" in reason for reason in run.against(idata, "independent"))
    statistics["walks"][1, -1] = 24.0  # the draws of that chain are not those of its proposals
    idata["sample_stats"] = xr.DataTree(statistics)
    assert run.against(idata, "independent")
    statistics["walks"][0, -1] = 24.0
    idata["sample_stats"] = xr.DataTree(statistics)
    assert not any("do not fit" in reason for reason in run.against(idata, "independent"))


def test_too_few_steps_are_no_fault_of_the_proposals() -> None:
    """They are said, and do not cost a second sampler that needs them as much."""
    with pytest.warns(UserWarning, match="cannot be trusted. substeps=1: on the posterior"):
        idata = sid.sample(tiny.model(), 500, **QUIET)
    assert idata.attrs["method"] == "independent" and "given up" not in idata.attrs["choices"]


def test_nuts_begins_again_with_shorter_steps_where_some_transitions_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    aims: list[float] = []
    count = {"first": 3}

    def drawn(self: Any, acceptance: float) -> xr.DataTree:
        diverging = np.zeros((2, 500), dtype=bool)
        diverging[0, : count["first"] if not aims else 0] = True
        aims.append(acceptance)
        return xr.DataTree.from_dict({"sample_stats": xr.Dataset({"diverging": (("chain", "draw"), diverging)})})

    monkeypatch.setattr(module._Run, "_nuts_aiming_at", drawn)
    run = module._Run(line(), 500, 100, 2, 1, 1, False)
    assert not run._nuts()["sample_stats"]["diverging"].any()
    assert aims == [module.ACCEPTANCE, module.CAREFUL] and run.choices[0].startswith("3 transitions of NUTS diverged")
    # Many divergences are another matter, and none are none.
    for first in (100, 0):
        aims.clear()
        count["first"] = first
        run._nuts()
        assert aims == [module.ACCEPTANCE]


def of_density(log_density: Any) -> pm.Model:
    with pm.Model() as model:
        x = pm.Flat("x")
        pm.Potential("density", log_density(x))
        pm.Normal("y", 0.0, 1.0, observed=[0.0])
    return model


def place(model: pm.Model, x: float, variance: float, converged: bool = True) -> Mode:
    logp = float(model.compile_logp()({"x": x}))
    return Mode({"x": np.array(x)}, np.array([x]), np.array([[variance]]), logp, converged)


@pytest.mark.parametrize(
    ("log_density", "first", "second", "variance", "same"),
    [
        (lambda x: -0.5 * x**2, 2.0, 0.0, 1.0, True),
        (lambda x: -0.5 * x**2, 6.0, 0.0, 1.0, False),  # far outside
        (lambda x: -3.0 * pt.abs(x), 0.5, 0.0, 0.25, True),  # an edge
        (lambda x: pt.logaddexp(-0.5 * x**2, 5.0 - 0.5e4 * (x - 1) ** 2), 0.0, 1.0, 1e-4, False),  # a needle
        (lambda x: pt.logaddexp(-5.0 * (x - 1.2) ** 2, -5.0 * (x + 1.2) ** 2), -1.2, 1.2, 1.0, False),  # a valley
    ],
)  # fmt: skip
def test_places_of_one_region_are_told_from_others(
    log_density: Any, first: float, second: float, variance: float, same: bool
) -> None:
    model = of_density(log_density)
    run = module._Run(model, 100, 100, 2, 1, 1, False)
    assert run._one_region(place(model, first, variance), place(model, second, variance)) is same
    assert not run._one_region(place(model, first, variance), place(model, second, variance, converged=False))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="method is 'best'; give 'auto', 'independent', 'nuts' or 'ibis'"):
        sid.sample(line(), method="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws is 0"):
        sid.sample(line(), 0)
    with line(), pytest.raises(TypeError, match=r"model is int; give a pm.Model.*by name, draws=300"):
        sid.sample(300)  # type: ignore[arg-type]
    with pm.Model() as empty:
        pm.Normal("x")
    with pytest.raises(ValueError, match="no observed variable"):
        sid.sample(empty)


def test_a_start_is_searched_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frequency of a wide prior that is known to a thousandth: hardly a prior draw is near its peak, but a fit is."""
    t = np.arange(2000) / 500.0
    y = np.sin(137.123 * t) + 0.1 * np.random.default_rng(0).standard_normal(t.size)
    with pm.Model() as model:
        frequency = pm.Uniform("frequency", 0.0, 1500.0)
        pm.Normal("y", pt.sin(frequency * t), 0.1, observed=y)
    begun: list[Any] = []

    def spied(*args: Any, **options: Any) -> Any:
        begun.append(options.get("start"))
        return sid.find_mode(*args, **options)

    monkeypatch.setattr(module, "find_mode", spied)
    idata = sid.sample(model, 500, start={"frequency": 137.1}, method="nuts", **QUIET)
    assert begun[0] == {"frequency": 137.1}
    assert abs(float(idata["posterior"]["frequency"].mean()) - 137.123) < 0.02
    for start, message in (
        ({"frequency": -1.0}, "start has frequency = -1.0, which its prior rules out"),
        ({"k": 1.0}, "no free variables"),
    ):
        with pytest.raises(ValueError, match=message):
            sid.sample(model, start=start)
    with pytest.raises(TypeError, match="start is float; give a dict"):
        sid.sample(model, start=1.0)  # type: ignore[arg-type]


def test_what_no_sampler_here_takes_is_refused_with_a_remedy_whatever_the_method() -> None:
    with pm.Model() as switch:
        pm.Normal("y", pm.Bernoulli("b", 0.5) * pm.Normal("a"), 1.0, observed=[0.5, 0.2])
    with pm.Model() as fixed:
        pm.Normal("y", pm.DiracDelta("d", 1.0) + pm.Normal("a"), 1.0, observed=[0.5, 0.2])
    for method in ("auto", "nuts", "ibis"):
        with pytest.raises(ValueError, match=r"\['b'\] are discrete.*compare_models"):
            sid.sample(switch, method=method, progressbar=False)
        with pytest.raises(ValueError, match=r"\['d'\] have one value only"):
            sid.sample(fixed, method=method, progressbar=False)
    with pm.Model() as flat:
        pm.Normal("y", pm.Flat("a"), 1.0, observed=[0.5, 0.2])
    with pytest.raises(NotImplementedError, match="give proper priors"):
        sid.sample_ibis(50, model=flat, chains=1, progressbar=False)


@pytest.mark.slow
def test_a_record_without_measurements_is_no_evidence() -> None:
    decay = sid.System(lambda t, x, u, p: -p.a * x.z, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z)
    with pm.Model() as model:
        record = sid.TimeSeries(np.arange(5.0), None, np.full(5, np.nan), outputs="y")
        sid.ODEFilter("y", decay, record, {"a": pm.LogNormal("a")}, noise=0.1, x0=1.0, substeps=1)
    with pytest.warns(UserWarning, match="draws are those of the prior"):
        idata = sid.sample(model, 200, chains=2, cores=1, random_seed=1, progressbar=False)
    assert not idata.attrs["trusted"] and "No sample of ['y'] is measured" in idata.attrs["verdict"]


@pytest.mark.slow
def test_a_spring_of_several_periods_is_found_or_doubted() -> None:
    """Few of eighty searches agree on a mode; where it is not the right one, innovations are not white."""
    spring = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * pt.sin(p.n * x.z)), states=("z", "v"), inputs=("F",),
        params=("c", "k", "n"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    t, truth, right = np.linspace(0, 15, 150), {"c": 0.4, "k": 2.0, "n": 3.0}, 0
    for seed in (2, 11, 13):
        record = sid.TimeSeries(t, 2 * np.sin(0.7 * t) + np.sin(1.9 * t + seed), None, inputs="F")
        y = sid.simulate(spring, record, truth, x0=0.0, substeps=16)["y"].to_numpy()
        record = record.replace(y=y + 0.02 * y.std() * np.random.default_rng(seed).standard_normal(150))
        with pm.Model() as model, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            free = {name: pm.LogNormal(name, 0.0, 1.0) for name in truth}
            sid.ODEFilter("y", spring, record, free, x0=0.0, noise=pm.HalfNormal("sigma", y.std()))
            idata = sid.sample(model, 500, random_seed=seed, progressbar=False)
        draws = {name: idata.posterior[name].values for name in truth}
        near = all(abs(draws[name].mean() - value) < 5 * draws[name].std() for name, value in truth.items())
        assert near or "better mode may have been missed" in idata.attrs["verdict"]
        right += near
    assert right >= 2


@pytest.mark.parametrize(
    ("rhat", "reasons", "method"),
    [(1.03, [], "ibis"), (1.03, ["Too few steps."], "nuts"), (1.2, ["Too few steps."], "ibis")],
)
def test_sequential_draws_replace_those_of_nuts_that_mix_slowly_only_if_they_are_better(
    rhat: float, reasons: list[str], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = module._Run(line(), 500, 100, 2, 1, 1, False)
    run.prepare()
    idata = xr.DataTree.from_dict({"sample_stats": xr.Dataset({"diverging": (("chain", "draw"), np.zeros((2, 500)))})})
    nuts = module._Drawn(idata, "nuts", ["mu has 300 effective draws."], [], [])
    monkeypatch.setattr(module, "_diagnostics", lambda idata: (rhat, "mu", 300.0, "mu"))
    monkeypatch.setattr(module._Run, "draw", lambda self, method: module._Drawn(idata, method, reasons, [], []))
    assert run.instead_of_nuts(nuts, nuts.reasons).method == method
    slowly = "mixes slowly" if rhat == 1.03 else "is given up"
    assert f"NUTS {slowly} (mu has 300 effective draws.); sequential sampling is tried instead" in run.choices
    # Too few draws were asked for: no sampler has more of them.
    run.draws = 100
    assert run.instead_of_nuts(nuts, nuts.reasons).method == ("ibis" if rhat > module.POOR_RHAT else "nuts")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 8, 19])
def test_slow_chains_between_a_narrow_mode_and_far_tails_give_way_to_sequential_draws(seed: int) -> None:
    """A spike and a slab: NUTS seldom changes between them. Exact by quadrature."""
    y = np.random.default_rng(0).normal(0, 9, 3)
    with pm.Model() as model:
        x = pm.Mixture("x", [0.8, 0.2], [pm.Normal.dist(0, 0.1), pm.StudentT.dist(2, mu=0, sigma=3)], shape=3)
        pm.Normal("y", x, 9, observed=y)
    grid = np.sinh(np.linspace(-10, 10, 100_001))
    prior = np.logaddexp(np.log(0.8) + norm.logpdf(grid, 0, 0.1), np.log(0.2) + student_t.logpdf(grid, 2, 0, 3))
    w = softmax(prior + norm.logpdf(y[:, None], grid, 9) + np.log(np.gradient(grid)), axis=1)
    mean = w @ grid
    sd = np.sqrt(w @ grid**2 - mean**2)
    idata = sid.sample(model, 1000, **QUIET | {"chains": 4, "random_seed": seed})
    draws = idata.posterior["x"].values.reshape(-1, 3)
    right = np.all(np.abs(draws.mean(axis=0) - mean) < 0.3 * sd) and np.all(np.abs(np.log(draws.std(axis=0) / sd)) < 0.3)
    assert idata.attrs["method"] == "ibis" and (right or not idata.attrs["trusted"])


@pytest.mark.parametrize(
    ("method", "converged", "doubted"), [("ibis", False, False), ("independent", False, True), ("ibis", True, True)]
)
def test_searches_that_end_at_no_maximum_are_no_reason_against_sequential_draws(
    method: module.Method, converged: bool, doubted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = module._Run(line(), 100, 100, 2, 1, 1, False)
    run.prepare()
    assert run.mode is not None
    run.mode, run.agreed = replace(run.mode, converged=converged), (1, 64)
    filtered = module._Run(decay(), 100, 100, 2, 1, 1, False)
    filtered.mode, filtered.agreed = run.mode, run.agreed
    monkeypatch.setattr(module, "coloured_output", lambda idata, name, model: "")
    assert ("Only 1 of 64 searches" in filtered._missed(xr.DataTree(), method)) == doubted
    filtered.agreed = 0, 64
    assert ("None of 64 searches" in filtered._missed(xr.DataTree(), method)) == doubted
    # A needle that no search has come near leaves innovations that are not white.
    monkeypatch.setattr(module, "coloured_output", lambda idata, name, model: "y")
    assert filtered._missed(xr.DataTree(), method)


@pytest.mark.slow
def test_the_scale_of_a_hierarchy_that_may_be_zero_is_no_missed_mode() -> None:
    """The density rises without end as the scale goes to zero; each search stops at a place of its own. Exact by quadrature."""
    y = 2.0 * np.random.default_rng(5).standard_normal(5)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 3.0)
        pm.Normal("y", pm.Normal("school", mu, tau, shape=5), 2.0, observed=y)
    log_tau = np.linspace(-10, 8, 4001)
    variance = 4 + np.exp(2 * log_tau)
    density = (
        -2.5 * np.log(variance)
        - np.sum((y - y.mean()) ** 2) / variance / 2
        - np.log(1 + 125 / variance) / 2
        - y.mean() ** 2 / (variance / 5 + 25) / 2
    )
    w = softmax(density + log_tau - np.log1p(np.exp(2 * log_tau) / 9))
    mean = w @ log_tau
    sd = np.sqrt(w @ (log_tau - mean) ** 2)
    idata = sid.sample(model, 1000, **QUIET | {"chains": 4})
    draws = np.log(idata.posterior["tau"].values)
    assert idata.attrs["trusted"] and abs(draws.mean() - mean) < 0.2 * sd and 0.85 < draws.std() / sd < 1.15


def test_a_covariance_has_a_root_in_any_unit() -> None:
    """Of the plain matrix in these units, rounding makes an eigenvalue negative or not."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        root = np.tril(rng.standard_normal((3, 3))) + 3 * np.eye(3)
        sizes = np.array([1.0, 1e-12, 1e9])
        assert module._has_root(root @ root.T * np.outer(sizes, sizes))
        indefinite = (root * [1.0, 1.0, -1.0]) @ root.T - 20 * np.outer(root[:, 0], root[:, 0])
        assert not module._has_root(indefinite * np.outer(sizes, sizes))
    assert not module._has_root(np.zeros((2, 2)))
