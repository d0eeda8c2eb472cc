"""find_mode on posteriors that are known: several modes, impossible starts, edges, seeds, models without filters."""

import logging
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.likelihood import mode as module
from pm_sysid.likelihood.global_search import climb_all


@pytest.fixture(autouse=True)
def quickly_compiled():
    """Models this small are not worth compiling."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


def two_peaks(low: float = -4.0, high: float = 3.0, initval: float = -4.0) -> pm.Model:
    """A broad peak with more of the posterior at ``high``, a higher and narrower one at ``low``, where the model starts."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0, initval=initval)
        narrow = np.log(0.5) - 0.5 * ((x - low) / 0.05) ** 2
        broad = np.log(0.3) - 0.5 * (x - high) ** 2
        pm.Potential("peaks", pm.math.logaddexp(narrow, broad))
    return model


def masses(low: float = -4.0, high: float = 3.0) -> np.ndarray:
    """Logarithms of the masses of the two peaks, by quadrature."""
    x = np.linspace(-15, 15, 600_001)
    step = x[1] - x[0]
    prior = norm.pdf(x, 0, 3)
    both = 0.3 * np.exp(-0.5 * (x - high) ** 2), 0.5 * np.exp(-0.5 * ((x - low) / 0.05) ** 2)
    return np.log([np.sum(prior * part) * step for part in both])


def test_the_mode_with_most_of_the_posterior_is_found_from_the_wrong_basin(caplog):
    model = two_peaks()
    assert sid.find_mode(model, prior_draws=0, progressbar=False).point[0] == pytest.approx(-4.0, abs=0.05)
    with caplog.at_level(logging.INFO, "pm_sysid"):
        mode = sid.find_mode(model, random_seed=1, progressbar=False)
    assert mode.converged and mode.point[0] == pytest.approx(2.7, abs=1e-3)
    assert [len(m.point) for m in mode.modes] == [1, 1]
    np.testing.assert_allclose([m.log_evidence for m in mode.modes], masses(), atol=1e-3)
    assert mode.log_evidence == mode.modes[0].log_evidence and mode.modes[0].initvals["x"] == mode.initvals["x"]
    said = f"2 modes; {mode.modes[0].searches} searches led to the best one"
    assert said in mode.message and said in caplog.text


@pytest.mark.slow
def test_nuts_from_one_of_several_modes_is_said_to_stay_in_it():
    with two_peaks():
        both = sid.find_mode(random_seed=1, progressbar=False)
        expected = np.exp(masses()) / np.exp(masses()).sum()
        assert np.sort(both.shares) == pytest.approx(np.sort(expected), rel=0.02)
        with pytest.warns(UserWarning, match="2 modes were found .*NUTS stays in the one it starts in"):
            both.nuts()
    with pm.Model():
        pm.Normal("x")
        one = sid.find_mode(random_seed=1, progressbar=False)
        assert one.shares.tolist() == [1.0]
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            one.nuts()


@pytest.mark.parametrize("seed", range(3))
def test_three_signs(seed):
    """Two signs that the record cannot tell, of which a potential forbids one pair; exact evidences are equal."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 200)
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Potential("cut", pm.math.switch(a + b > -1, 0.0, -np.inf))
        pm.Normal("y", a**2 + b**2 * x, 0.1, observed=1 + 0.5 * x + 0.1 * rng.standard_normal(200))
    mode = sid.find_mode(model, random_seed=seed, progressbar=False)
    signs = sorted(tuple(np.sign(m.point).astype(int)) for m in mode.modes)
    assert signs == [(-1, 1), (1, -1), (1, 1)]
    assert np.ptp([m.log_evidence for m in mode.modes]) < 1e-3
    assert sum(m.searches for m in mode.modes) <= 32


def test_searches_that_led_to_modes_are_counted():
    mode = sid.find_mode(two_peaks(), progressbar=False, random_seed=0)
    led, searches = mode.agreed
    assert led == sum(m.searches for m in mode.modes) <= searches == mode.searches and led > 0.25 * searches


def test_where_few_searches_agree_others_begin_around_the_best(monkeypatch):
    """A sine over a hundred periods of the prior: most searches end at lower maxima, and those around a better one go on."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 30.0)
        pm.Potential("waves", 30.0 * pm.math.cos(x) - 0.02 * (x - 55.0) ** 2)
    monkeypatch.setattr(module, "AROUND", 0.5)
    found = {}
    for rounds in (0, 3):
        monkeypatch.setattr(module, "ROUNDS_AROUND", rounds)
        found[rounds] = sid.find_mode(model, progressbar=False, random_seed=1, prior_draws=12, starts=4)
    assert found[0].agreed == (1, 6)
    assert found[3].searches == 10 and found[3].logp > found[0].logp + 3


def test_one_seed_gives_one_result():
    first, again = (sid.find_mode(two_peaks(), random_seed=7, progressbar=False) for _ in range(2))
    np.testing.assert_array_equal(first.point, again.point)
    assert first.message == again.message and first.logp == again.logp


def test_a_start_of_minus_infinity_is_left():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Potential("cut", pm.math.switch(x > 2, 0.0, -np.inf))
        pm.Normal("y", x, 0.1, observed=4.0)
    mode = sid.find_mode(model, random_seed=1, progressbar=False)
    assert mode.converged and mode.point[0] == pytest.approx(4.0 / (1 + 0.01 / 9))


@pytest.mark.parametrize("prior_draws", [0, 100])
def test_where_all_starts_are_impossible_an_error_says_what_to_do(prior_draws):
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Potential("cut", pm.math.switch(x > 300, 0.0, -np.inf))
    with pytest.raises(ValueError, match=r"minus infinity at the model's initial point.*give start="):
        sid.find_mode(model, prior_draws=prior_draws, progressbar=False)
    with pytest.raises(ValueError, match=r"minus infinity at start.*no mode to climb to"):
        sid.find_mode(model, start={"x": 299.0}, prior_draws=prior_draws, progressbar=False)


def test_an_edge_is_no_maximum_and_is_named():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Potential("cut", pm.math.switch(x > 3, 0.0, -np.inf))
    with pytest.warns(UserWarning, match="no clear maximum.*edge of where the log posterior is finite"):
        mode = sid.find_mode(model, random_seed=1, progressbar=False)
    assert not mode.converged and np.isnan(mode.log_evidence)


@pytest.mark.slow
def test_a_maximum_at_infinity_names_the_coordinate():
    """An infinitely steep density towards zero noise: one sample, its own mean."""
    with pm.Model() as model:
        noise = pm.Uniform("noise", 0.0, 1.0)
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("y", mu, noise, observed=[0.3, 0.3, 0.3])
    with pytest.warns(UserWarning, match="noise_interval__.* ran away"):
        assert not sid.find_mode(model, random_seed=1, progressbar=False).converged


def beside_a_plateau(height: float) -> pm.Model:
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Potential("two", pm.math.switch(x < -3, height, -0.5 * (x - 2) ** 2))
        pm.Potential("cut", pm.math.switch(x < -5, -np.inf, 0.0))
    return model


def test_a_higher_place_that_is_no_maximum_is_said():
    with pytest.warns(UserWarning, match=r"saw a log posterior of .* above that of the mode"):
        mode = sid.find_mode(beside_a_plateau(15.0), random_seed=1, progressbar=False)
    assert mode.converged and mode.point[0] == pytest.approx(2 / (1 + 1 / 9))


def test_a_place_beside_which_a_maximum_holds_nothing_is_returned():
    with pytest.warns(UserWarning, match=r"stopped at a point that is no clear maximum"):
        mode = sid.find_mode(beside_a_plateau(50.0), random_seed=1, progressbar=False)
    assert not mode.converged and -5 < mode.point[0] < -3


def test_a_prior_that_cannot_be_drawn_from_leaves_one_start(caplog):
    with pm.Model() as model:
        x = pm.Flat("x")
        pm.Normal("y", x, 1.0, observed=[1.0, 3.0])
    with caplog.at_level(logging.INFO, "pm_sysid"):
        mode = sid.find_mode(model, progressbar=False)
    assert mode.converged and mode.point[0] == pytest.approx(2.0)
    assert "one search, from the model's initial point" in caplog.text and "cannot be drawn from" in caplog.text


def test_a_likelihood_that_is_one_number_is_searched_globally_as_well():
    """``Target`` refuses it, since it has no samples to take in one after the other."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0, shape=2, initval=[-2.0, -2.0])
        pm.MvNormal("y", x**2 + 0.3 * x, cov=0.01 * np.eye(2), observed=[4.6, 4.6])
    mode = sid.find_mode(model, random_seed=1, progressbar=False)
    assert len(mode.modes) == 4 and mode.point == pytest.approx([2.0, 2.0], abs=0.01)


def test_interruption_after_a_mode_was_found_keeps_it(monkeypatch):
    """Ctrl-C in the second round of searches."""
    rounds = []

    def interrupted(*args):
        rounds.append(args)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return climb_all(*args)

    monkeypatch.setattr("pm_sysid.likelihood.mode.climb_all", interrupted)
    with pytest.warns(UserWarning, match="was interrupted; this is the best mode so far"):
        mode = sid.find_mode(two_peaks(), random_seed=1, progressbar=False)
    assert mode.converged and mode.point[0] == pytest.approx(2.7, abs=1e-3)


def test_interruption_before_anything_was_found_is_passed_on(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "possible_draws", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sid.find_mode(two_peaks(), progressbar=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prior_draws": -1}, r"prior_draws is -1; give a whole number"),
        ({"prior_draws": 2.5}, r"prior_draws is 2\.5"),
        ({"starts": 0}, r"starts is 0; give a positive whole number"),
    ],
)
def test_bad_numbers_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        sid.find_mode(two_peaks(), **options)


def test_discrete_and_empty_models_are_refused():
    with pm.Model() as model:
        pm.Poisson("n", 3.0)
    with pytest.raises(ValueError, match=r"\['n'\] are discrete"):
        sid.find_mode(model)
    with pytest.raises(ValueError, match="no free variables"):
        sid.find_mode(pm.Model())


def test_a_draw_that_makes_a_matrix_impossible_does_not_end_the_batch():
    """A covariance that is positive definite for some draws only."""
    with pm.Model() as model:
        r = pm.Normal("r", 0.0, 1.0)
        covariance = pm.math.stack([pm.math.stack([1.0, r]), pm.math.stack([r, 1.0])])
        pm.MvNormal("y", [0.0, 0.0], cov=covariance, observed=[[1.0, 0.8], [-0.5, -0.7], [0.3, 0.6]])
    mode = sid.find_mode(model, prior_draws=40, starts=4, random_seed=1, progressbar=False)
    assert mode.converged and 0.5 < mode.point[0] < 1


def test_a_mode_that_the_prior_all_but_rules_out_is_said_with_its_value():
    """A record in mm under a prior in m; the entry that fits is not named."""
    with pm.Model() as model:
        amplitude = pm.LogNormal("amplitude", np.log(0.02), 0.5, shape=2)
        pm.Normal("y", amplitude, 0.1, observed=[0.03, 20.0])
    with pytest.warns(UserWarning, match=r"rules it out \(amplitude\[1\] = 19.99\); look at the units"):
        mode = sid.find_mode(model, random_seed=1, progressbar=False)
    assert mode.converged and "units" in mode.message


def test_a_noise_that_takes_up_what_does_not_fit_is_said():
    """Half-normal densities end within a factor of ten, in logarithms at three deviations."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x"), pm.HalfNormal("noise", 1.0), observed=np.full(40, 30.0))
    with pytest.warns(UserWarning, match=r"rules it out \("):
        assert sid.find_mode(model, random_seed=1, progressbar=False).converged


@pytest.mark.parametrize("kind", ["small noise", "seven deviations", "hierarchy"])
def test_values_that_priors_allow_for_are_not_said_to_be_impossible(kind):
    """A noise that is a ten-thousandth of its prior; a value that is far off; effects under a scale that is unknown."""
    y = np.random.default_rng(0).normal(0.0, 1e-4, 50)
    with pm.Model() as model:
        if kind == "small noise":
            pm.Normal("y", 0.0, pm.HalfNormal("noise", 1.0), observed=y)
        elif kind == "seven deviations":
            pm.Normal("y", pm.Normal("x"), 0.01, observed=7.0 + y)
        else:
            effect = pm.Normal("effect", 0.0, pm.HalfNormal("scale", 1.0), shape=20)
            pm.Normal("y", effect, 1e-3, observed=np.linspace(-3, 3, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sid.find_mode(model, random_seed=1, progressbar=False).converged


def test_a_density_that_rises_without_end_is_known_as_such() -> None:
    """That of a hierarchy, where its scale goes to zero; searches do not agree where it stops them."""
    y = 0.1 * np.random.default_rng(0).standard_normal(4)
    with pm.Model() as hierarchy:
        tau = pm.HalfNormal("tau")
        k = pm.Normal("k", 0.0, tau, shape=4)
        pm.Normal("y", k, 0.3, observed=y)
    with pm.Model() as plain:
        pm.Normal("y", pm.Normal("k", shape=4), 0.3, observed=y)
    with pytest.warns(UserWarning, match="ran away from the prior"):
        mode = sid.find_mode(hierarchy, random_seed=0, progressbar=False)
    assert mode.endless
    assert not sid.find_mode(plain, random_seed=0, progressbar=False).endless


@pytest.mark.parametrize("size", [1e-15, 1e-9, 1e9, 1e15])
def test_the_unit_of_an_unknown_changes_nothing(size: float) -> None:
    """A rate and a level, of which the level has no logarithm; the density of the record has the unit in it."""

    def model(unit: float) -> pm.Model:
        t = np.linspace(0, 3, 20)
        y = unit * (0.7 * np.exp(-0.8 * t) + 0.03 * np.random.default_rng(0).standard_normal(20))
        with pm.Model() as found:
            rate, level, noise = pm.LogNormal("rate", 0, 1), pm.Normal("level", 0, unit), pm.HalfNormal("noise", 0.2 * unit)
            pm.Normal("y", level * pm.math.exp(-rate * t), noise, observed=y)
        return found

    one, other = (sid.find_mode(model(unit), random_seed=0, progressbar=False) for unit in (1.0, size))
    assert one.converged and other.converged and len(other.modes) == 1 and other.agreed == one.agreed
    assert other.initvals["level"] == pytest.approx(size * one.initvals["level"], rel=1e-4)
    assert other.log_evidence == pytest.approx(one.log_evidence - 20 * np.log(size), abs=1e-3)
    scale = np.array([1.0, size, 1.0])
    np.testing.assert_allclose(other.covariance / np.outer(scale, scale), one.covariance, rtol=1e-3, atol=1e-7)


def test_variables_may_have_the_names_of_types() -> None:
    with pm.Model() as model:
        start, count = pm.LogNormal("S00", 0.0, 0.3), pm.Normal("int")
        pm.Normal("y", start + count * np.arange(5.0), 0.1, observed=1.0 + 0.5 * np.arange(5))
    assert sid.find_mode(model, progressbar=False).converged
    idata = sid.sample(model, 1000, chains=2, cores=1, random_seed=1, progressbar=False)
    assert float(idata.posterior["S00"].mean()) == pytest.approx(1.0, abs=0.1)
    sequential = sid.sample_ibis(100, model=model, chains=2, cores=1, random_seed=1, progressbar=False)
    assert float(sequential.posterior["int"].mean()) == pytest.approx(0.5, abs=0.1)
