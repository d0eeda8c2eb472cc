"""Figures and residual tests: what is drawn, what is said, what is refused."""

import matplotlib
import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from scipy import signal, stats

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from pm_sysid.plots.fit import plot_fit
from pm_sysid.plots.prior_posterior import plot_prior_posterior
from pm_sysid.plots.residuals import plot_residuals
from pm_sysid.records.metrics import fit_percent, rmse
from pm_sysid.records.residual_tests import correlation, residual_tests
from pm_sysid.records.timeseries import TimeSeries

RNG = np.random.default_rng(0)
T = 200
TIME = np.arange(T) / 100
TRUE = np.stack([np.sin(9 * TIME), np.cos(9 * TIME)], axis=1)
RECORD = TimeSeries(TIME, y=TRUE + 0.05 * RNG.normal(size=(T, 2)), outputs=("z", "v"))
DRAWS = TRUE * (1 + 0.02 * RNG.normal(size=(4, 25, 1, 1)))


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def one_output(record=RECORD):
    return TimeSeries(record.t, y=record.y[:, 0], outputs="z")


def line(ax, label):
    return next(artist for artist in ax.lines if artist.get_label() == label)


def drawn(ax, label):
    return line(ax, label).get_ydata()


def test_fit_draws_record_median_band_and_residual():
    fit, residual = plot_fit(RECORD, DRAWS, output="v", hdi=0.8)
    y, pooled = RECORD.y[:, 1], DRAWS[..., 1].reshape(100, T)
    low, median, high = np.quantile(pooled, [0.1, 0.5, 0.9], axis=0)
    assert_allclose(drawn(fit, "measured"), y)
    assert_allclose(drawn(fit, "median"), median)
    assert_allclose(drawn(residual, "measured"), y - median)
    band = fit.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((low.min(), high.max()))
    assert [text.get_text() for text in fit.get_legend().get_texts()] == ["measured", "median", "80 % interval"]
    assert (fit.get_ylabel(), residual.get_ylabel(), residual.get_xlabel()) == ("v", "residual", "time (s)")
    assert residual.get_title(loc="right") == f"RMSE {rmse(y, median):.3g}, fit {fit_percent(y, median):.4g} %"
    fit.figure.canvas.draw()


@pytest.mark.parametrize(
    "prediction",
    [
        DRAWS[..., 1],
        DRAWS,
        xr.DataArray(DRAWS, dims=("chain", "draw", "v_time", "output"), coords={"v_time": TIME}),
        xr.DataArray(DRAWS, dims=("chain", "draw", "time", "k"), coords={"k": ["z", "v"]}).transpose("k", "time", ...),
        xr.Dataset({"v": (("time", "particle"), DRAWS[..., 1].reshape(100, T).T)}).transpose("particle", "time"),
    ],
    ids=["draws", "outputs", "labelled", "coordinates", "dataset"],
)
def test_fit_takes_predictions_in_any_form(prediction):
    fit, _ = plot_fit(RECORD, prediction, output="v")
    assert_allclose(drawn(fit, "median"), np.median(DRAWS[..., 1], axis=(0, 1)))


def test_fit_finds_an_output_that_the_system_does_not_name():
    record = one_output().replace(outputs="Position")
    run = {"y": ("time", TRUE[:, 0]), "z": ("time", TRUE[:, 1])}
    fit, _ = plot_fit(record, xr.Dataset(run))
    assert_allclose(drawn(fit, "prediction"), TRUE[:, 0])
    both = RECORD.replace(outputs=("Position", "Speed"))
    pair = xr.Dataset({"y1": ("time", TRUE[:, 0]), "y2": ("time", TRUE[:, 1])})
    assert_allclose(drawn(plot_fit(both, pair, output="Speed")[0], "prediction"), TRUE[:, 1])
    with pytest.raises(ValueError, match=r"no variable 'Position'; it has z, y: name the outputs"):
        plot_fit(record, xr.Dataset({"z": run["z"], "y": run["y"]}))  # a state that is called y


def test_fit_of_one_prediction_has_no_band():
    fit, _ = plot_fit(one_output(), TRUE[:, 0])
    assert not fit.collections and len(drawn(fit, "prediction")) == T


def test_fit_window_and_zoom():
    axes = plot_fit(RECORD, DRAWS, output="z", window=(0.5, 1.5), zoom=(1.0, 1.2))
    assert axes.shape == (2, 2)
    assert axes[0, 0].get_xlim() == pytest.approx((0.5, 1.5)) and axes[1, 1].get_xlim() == pytest.approx((1.0, 1.2))
    assert len(drawn(axes[0, 0], "measured")) == 101 and len(drawn(axes[0, 1], "measured")) == 21
    inside = slice(50, 151)
    score = rmse(RECORD.y[inside, 0], np.median(DRAWS[..., 0], axis=(0, 1))[inside])
    assert f"RMSE {score:.3g}," in axes[1, 0].get_title(loc="right")


def test_fit_in_given_axes():
    _, ax = plt.subplots()
    (fit,) = plot_fit(one_output(), DRAWS[..., 0], axes=ax)
    assert fit is ax and fit.get_xlabel() == "time (s)" and "RMSE" in fit.get_legend().get_title().get_text()
    _, given = plt.subplots(2, 1)
    assert all(plot_fit(one_output(), DRAWS[..., 0], axes=given) == given)
    with pytest.raises(ValueError, match="axes must hold 2 or 4 matplotlib axes, but holds 1"):
        plot_fit(one_output(), DRAWS[..., 0], axes=ax, zoom=(0, 1))


def test_long_records_are_drawn_as_extremes_with_gaps():
    size = 20_011
    y = np.sin(np.arange(size) / 50)
    y[123], y[17_001], y[5000:5200] = 5.0, -7.0, np.nan
    fit, _ = plot_fit(TimeSeries(np.arange(size) / 10, y=y), np.stack([np.sin(np.arange(size) / 50)] * 2))
    t, x = line(fit, "measured").get_data()
    assert len(x) <= 2000 and (np.nanmin(x), np.nanmax(x)) == (-7, 5) and np.isnan(x).any()
    assert np.all(np.diff(t) >= 0) and t[np.nanargmax(x)] == 12.3
    assert len(fit.collections[0].get_paths()[0].vertices) < 2100


def test_fit_leaves_out_draws_that_are_not_finite():
    draws = DRAWS[0, :, :, 0].copy()
    draws[3, 50:] = np.nan
    with pytest.warns(UserWarning, match="1 of 25 predictions are not finite"):
        fit, _ = plot_fit(one_output(), draws)
    assert_allclose(drawn(fit, "median"), np.median(np.delete(draws, 3, axis=0), axis=0))
    with pytest.raises(ValueError, match="no draw that is finite"):
        plot_fit(one_output(), np.full(T, np.nan))


@pytest.mark.parametrize(
    ("prediction", "options", "message"),
    [
        (DRAWS, {}, "record has the outputs z, v; choose one"),
        (DRAWS, {"output": "w"}, "output must be one of z, v, but is 'w'"),
        (DRAWS[..., :9, 0], {"output": "z"}, r"\(..., 200\) or \(..., 200, 2\) to match record, but has \(4, 25, 9\)"),
        (xr.Dataset({"x": ("time", TIME)}), {"output": "z"}, "prediction has no variable 'z'; it has x"),
        (DRAWS, {"output": "z", "window": (5, 6)}, "window must hold at least two samples of 0 to 1.99 s"),
        (DRAWS, {"output": "z", "zoom": (1, 1)}, "zoom must hold"),
        (DRAWS, {"output": "z", "hdi": 94}, "hdi must lie between 0 and 1"),
    ],
)
def test_fit_refuses(prediction, options, message):
    with pytest.raises(ValueError, match=message):
        plot_fit(RECORD, prediction, **options)


def at(times):
    return xr.Dataset({"z": (("draw", "time"), DRAWS[0, ..., 0])}, coords={"time": times})


@pytest.mark.parametrize("times", [TIME + 0.01, TIME + 1000.0, 2 * TIME, TIME[::-1], np.where(TIME > 1, np.nan, TIME)])
def test_fit_refuses_predictions_at_other_times(times):
    """Even by one sample: the titles say errors."""
    with pytest.raises(ValueError, match=r"at the times of record, but sample \d+ is at .* s and not at .* s"):
        plot_fit(one_output(), at(times))


@pytest.mark.parametrize("times", [TIME, TIME * (1 + 1e-15), TIME.astype("M8[s]")])
def test_fit_takes_the_times_of_the_record_and_what_are_no_numbers(times):
    plot_fit(one_output(), at(times))


def test_fit_needs_outputs():
    with pytest.raises(ValueError, match="record has no outputs"):
        plot_fit(TimeSeries(TIME), TIME)


def test_correlation_with_missing_values():
    a, b = RNG.normal(size=(2, 40))
    a[[3, 17]] = b[9] = np.nan
    x, y = ((v - np.nanmean(v)) / np.nanstd(v) for v in (a, b))
    r, pairs = correlation(a, b, [-2, 0, 5])
    for k, lag in enumerate([-2, 0, 5]):
        products = [x[t] * y[t - lag] for t in range(40) if 0 <= t - lag < 40]
        assert r[k] == pytest.approx(np.nanmean(products)) and pairs[k] == np.isfinite(products).sum()


def test_ljung_box_is_the_textbook_statistic():
    e = RNG.normal(size=300)
    x = e - e.mean()
    r = np.array([x[k:] @ x[:-k] / (x @ x) for k in range(1, 11)])
    tests = residual_tests(e, lags=10)
    assert tests.ljung_box == pytest.approx(300 * 302 * np.sum(r**2 / (300 - np.arange(1, 11))))
    assert tests.ljung_box_p == pytest.approx(stats.chi2.sf(tests.ljung_box, 10), abs=0.03)  # which it is for long records
    assert tests.jarque_bera_p == pytest.approx(stats.jarque_bera(e).pvalue)
    assert tests.cross_p is None and "input" not in repr(tests)


def test_p_values_of_noise_with_gaps_are_uniform():
    p = []
    for _ in range(150):
        e, u = RNG.normal(size=(2, 400))
        e[RNG.random(400) < 0.2] = np.nan
        tests = residual_tests(e, u, lags=15)
        p.append((tests.ljung_box_p, tests.cross_p, tests.jarque_bera_p))
    for test in range(2):
        assert stats.kstest([row[test] for row in p], "uniform").pvalue > 1e-3
    assert np.mean(np.array(p)[:, 2] < 0.01) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("colour", [0.0, 0.6])
def test_the_mean_of_residuals_is_judged_by_its_long_run_error(colour: float) -> None:
    """Of noise with a correlation of ``colour`` from one sample to the next, whose mean varies twice as much as of white."""
    p, shifted = [], []
    for _ in range(150):
        e = signal.lfilter([np.sqrt(1 - colour**2)], [1.0, -colour], RNG.normal(size=700))[100:]
        e[RNG.random(600) < 0.2] = np.nan
        p.append(residual_tests(e).mean_p)
        shifted.append(residual_tests(e + 0.5).mean_p)
    assert np.mean(np.array(p) < 0.01) < 0.05 and np.mean(np.array(shifted) < 0.01) > 0.9
    assert "not centred on zero: an offset" in repr(residual_tests(e + 0.5))


def test_verdicts():
    e, u = RNG.normal(size=(2, 3000))
    good = repr(residual_tests(e, u))
    assert all(verdict in good for verdict in ("  white", "  independent of the input", "  normal"))
    assert "not white" in repr(residual_tests(e[1:] + e[:-1]))
    assert "not normal" in repr(residual_tests(e**3))
    late = residual_tests(e + 0.3 * np.roll(u, 4), u)
    assert late.cross_lag == 4 and late.cross_p < 1e-6 and "depend on the input" in repr(late)
    early = residual_tests(e + 0.3 * np.roll(u, -4), u)
    assert early.cross_lag == -4 and "later input" in repr(early)


@pytest.mark.parametrize("missing", [False, True])
def test_residual_panels(missing):
    e, u = RNG.normal(size=(2, 500))
    if missing:
        e[40:60] = np.nan
    axes = plot_residuals(e, u=u, fs=50.0, lags=20)
    (series, auto), (cross, quantiles) = axes
    assert_allclose(series.lines[0].get_xdata(), np.arange(500) / 50)
    assert [artist.get_ydata()[0] for artist in series.lines[1:]] == [-2, 2]
    for panel, r in ((auto, correlation(e, e, range(1, 21))[0]), (cross, correlation(e, u, range(-20, 21))[0])):
        stems = panel.collections[1].get_segments()
        assert_allclose([stem[1, 1] for stem in stems], r)
        bound = panel.collections[0].get_paths()[0].vertices[:, 1].max()
        assert bound == pytest.approx(2.576 / np.sqrt(500), rel=0.1)
    assert np.all(np.diff(quantiles.lines[1].get_ydata()) >= 0)
    assert_allclose(*quantiles.lines[0].get_data())
    assert (series.get_xlabel(), auto.get_xlabel(), quantiles.get_xlabel()) == (
        "time (s)",
        "lag (samples)",
        "normal quantile",
    )
    axes[0, 0].figure.canvas.draw()


def test_residual_panels_without_input_or_standardisation():
    axes = plot_residuals(3 + 0.01 * RNG.normal(size=100), lags=10, standardised=False, axes=plt.subplots(2, 2)[1])
    assert axes[1, 0].texts[0].get_text() == "no input" and axes[0, 0].get_ylabel() == "residual"
    assert [artist.get_ydata()[0] for artist in axes[0, 0].lines[1:]] == pytest.approx([2.98, 3.02], abs=0.01)


@pytest.mark.parametrize("check", [residual_tests, plot_residuals])
@pytest.mark.parametrize(
    ("residuals", "options", "message"),
    [
        (np.zeros((5, 2)), {}, r"residuals must have shape \(T,\), but has \(5, 2\)"),
        (np.arange(10.0), {"lags": 9}, "residuals has 10 finite values, but lags=9 needs at least 11"),
        (np.arange(10.0), {"lags": 0}, "lags must be a whole number, 1 or more, but is 0"),
        (np.ones(10), {"lags": 3}, "residuals are all equal"),
        (np.arange(10.0), {"lags": 3, "u": np.arange(9.0)}, r"u must have shape \(10,\) like residuals"),
        (np.arange(10.0), {"lags": 3, "u": np.ones(10)}, "u must be finite and vary"),
    ],
)
def test_residuals_refused(check, residuals, options, message):
    with pytest.raises(ValueError, match=message):
        check(residuals, **options)


def tree(**groups):
    return xr.DataTree.from_dict({name: xr.Dataset(variables) for name, variables in groups.items()})


def pooled(values, *dims):
    return ("chain", "draw", *dims), values


POSTERIOR = {
    "m": pooled(RNG.normal(1, 0.01, (2, 500))),
    "zeta": pooled(np.abs(RNG.normal(0, 0.02, (2, 500, 2))), "mode"),
    "y_hat": pooled(RNG.normal(size=(2, 500, 3)), "y_time"),
}
PRIOR = {"m": pooled(RNG.normal(1, 0.3, (1, 400))), "zeta": pooled(np.abs(RNG.normal(0, 0.03, (1, 400, 2))), "mode")}


def test_prior_posterior_panels():
    panels = plot_prior_posterior(tree(posterior=POSTERIOR, prior=PRIOR), truth={"m": 1.004, "zeta": [0.01, 0.02]})
    assert [panel.get_xlabel() for panel in panels] == ["m", "zeta[0]", "zeta[1]"]
    m, zeta = panels[0], panels[2]
    assert "±" in m.get_title() and m.get_title().endswith("times wider")  # seen close up
    assert m.get_xlim()[1] - m.get_xlim()[0] < 0.15
    assert "wider" not in zeta.get_title()
    assert line(m, "prior").get_linewidth() < line(zeta, "prior").get_linewidth()
    assert line(m, "truth").get_xdata()[0] == 1.004 and line(zeta, "truth").get_xdata()[0] == 0.02
    legend = m.figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["prior", "posterior", "truth"]
    m.figure.canvas.draw()


def test_a_prior_that_would_lie_on_the_axis_is_neither_drawn_nor_promised():
    flat = {"m": pooled(RNG.normal(1, 5.0, (1, 400))), "zeta": PRIOR["zeta"]}
    (m,) = plot_prior_posterior(tree(posterior=POSTERIOR, prior=flat), var_names="m")
    assert "times wider" in m.get_title() and [one.get_label() for one in m.lines] == ["posterior"]
    assert [text.get_text() for text in m.figure.legends[0].get_texts()] == ["posterior"]
    both = plot_prior_posterior(tree(posterior=POSTERIOR, prior=flat))
    assert {text.get_text() for text in both[0].figure.legends[0].get_texts()} == {"prior", "posterior"}
    constant = {"m": pooled(np.ones((2, 50)))}
    (m,) = plot_prior_posterior(tree(posterior=constant, prior={"m": PRIOR["m"]}))
    assert line(m, "prior").get_ydata().max() > 0


def test_densities_integrate_to_one_and_stop_at_bounds():
    (m,) = plot_prior_posterior(tree(posterior=POSTERIOR), var_names="m")
    x, density = line(m, "posterior").get_data()
    assert np.trapezoid(density, x) == pytest.approx(1, abs=0.01)
    assert density.max() == pytest.approx(stats.norm.pdf(0, scale=0.01), rel=0.15)
    zeta, _ = plot_prior_posterior(tree(posterior=POSTERIOR), var_names=["zeta"])
    x, density = line(zeta, "posterior").get_data()
    assert np.trapezoid(density, x) == pytest.approx(1, abs=0.03) and np.all(density[x < 0] == 0)
    assert density[x > 0][0] == pytest.approx(stats.halfnorm.pdf(0, scale=0.02), rel=0.2)


def test_prior_posterior_layout_and_given_axes():
    vector = tree(posterior={"a": pooled(RNG.normal(size=(1, 50, 5)), "k")})
    panels = plot_prior_posterior(vector)
    assert len(panels) == 5 and len(panels[0].figure.axes) == 6
    _, given = plt.subplots(1, 5)
    assert all(plot_prior_posterior(vector, axes=given) == given) and given[0].get_legend()


@pytest.mark.parametrize(
    ("value", "title"),
    [
        (np.array([1.0, 1.0]), "1"),
        (np.array([-3.1, -2.9]), "\N{MINUS SIGN}3.00 ± 0.10"),
        (np.array([1.2e5, 1.3e5]), r"(1.250 ± 0.050)$\times 10^{5}$"),
        (np.array([190.0, 310.0]), "250 ± 60"),
    ],
)
def test_title(value, title):
    (panel,) = plot_prior_posterior(tree(posterior={"a": pooled(value[None])}))
    assert panel.get_title() == title


@pytest.mark.parametrize(
    ("idata", "options", "message"),
    [
        (tree(prior=PRIOR), {}, "idata must have the group 'posterior', but has prior"),
        (tree(posterior=POSTERIOR), {"var_names": ["k"]}, "the posterior has no parameter 'k'; it has m, zeta, y_hat"),
        (tree(posterior=POSTERIOR), {"truth": {"q": 1}}, "the posterior has no parameter 'q'"),
        (tree(posterior={"a": pooled(np.ones((1, 9, 41)), "i")}), {}, "there are 41 parameters to draw"),
    ],
)
def test_prior_posterior_refuses(idata, options, message):
    with pytest.raises(ValueError, match=message):
        plot_prior_posterior(idata, **options)
