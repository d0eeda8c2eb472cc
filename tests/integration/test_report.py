"""The report on one model or several, the check of substeps, and free runs that begin where the record does."""

import re
import sys
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.reports.blocks import Figure, Paragraph
from pm_sysid.reports.report import checksum, headline
from pm_sysid.reports.sections import Study, _beside, _tested
from pm_sysid.solve.filter_substeps import noise_level
from support.small import linear_oscillator

matplotlib.use("Agg")
pytestmark = pytest.mark.filterwarnings("ignore:Could not infer the shape:UserWarning")

TRUTH = {"c": 0.4, "k": 30.0}
NOISE = 0.01
SYSTEM = linear_oscillator(lambda t, x, dx, u, p: {"position": x.z, "acceleration": dx.v})


def record_of(seed: int, strength: float = 1.0) -> sid.TimeSeries:
    """Irregular samples of two outputs, the first with a gap; not at rest at the first sample."""
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.uniform(0.03, 0.05, 160))
    u = strength * 3 * np.sin(2.0 * t + seed)
    run = sid.simulate(SYSTEM, sid.TimeSeries(t, u, None, inputs="F", intersample="foh"), TRUTH, x0={"z": 0.1, "v": 1.0})
    y = np.stack([run["position"], run["acceleration"]], axis=-1) + NOISE * rng.standard_normal((160, 2))
    y[50:70, 0] = np.nan
    return sid.TimeSeries(t, u, y, inputs="F", outputs=("position", "acceleration"), intersample="foh")


RECORD, OTHER = record_of(1), record_of(2, 1.5)


def build(damped: bool = True) -> pm.Model:
    with pm.Model() as model:
        params = {"c": pm.HalfNormal("c", 1.0) if damped else 0.0, "k": pm.Normal("k", 20.0, 20.0)}
        sid.ODEFilter("y", SYSTEM, RECORD, params, noise=pm.HalfNormal("noise", 0.1), substeps=1)
    return model


def draws(seed: int = 0, n: int = 400, **away: float) -> xr.DataTree:
    """What a sampler would have found, or something else."""
    rng = np.random.default_rng(seed)
    centre = {**TRUTH, "noise": NOISE, **away}
    std = {"c": 0.003, "k": 0.03, "noise": 0.0005}
    found = xr.DataTree.from_dict(
        {"posterior": xr.Dataset({k: (("chain", "draw"), rng.normal(v, std[k], (2, n))) for k, v in centre.items()})}
    )
    found.attrs |= {"choices": "NUTS from the mode\nNothing is known against these draws", "trusted": 1}
    return found


MODEL = build()
#: Settings with which NUTS stays where it begins.
ONE_MODE = {"chains": 2, "cores": 1, "init": "adapt_diag", "nuts_sampler": "pymc", "random_seed": 1, "progressbar": False}


class Page(HTMLParser):
    """Headings, verdicts, pictures, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str]] = []
        self.headings: list[str] = []
        self.levels: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))
        if tag == "li":
            self.levels.append(dict(attrs).get("class", ""))
        if tag not in ("img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data)


@pytest.fixture(scope="module")
def good(tmp_path_factory, unrendered_for_all):
    units = {"position": "m", "acceleration": "m/s^2", "F": "N", "k": "1/s^2"}
    path = sid.report(MODEL, draws(), RECORD, validation=OTHER, path=tmp_path_factory.mktemp("r") / "good.html", units=units)
    return path.read_text()


def test_a_report_has_all_its_sections_and_needs_no_other_file(good) -> None:
    page = Page(good)
    for heading in ("In short", "Data", "Equations", "Parameters", "Fit", "Residuals", "Integration", "Validation"):
        assert heading in page.headings
    assert all(image["src"].startswith("data:image/") and image["alt"] for image in page.images)
    assert len(page.images) >= 4 + 2 + 2 + 2 + 2 + 4  # equations, records, densities, fit, residuals, validation
    assert not re.search(r"<(script|link)|href=\"http", good)
    assert re.search("<summary>What sid.sample did</summary>.*NUTS from the mode", good, re.DOTALL)
    assert 'class="warning"' not in good


def test_the_right_model_gets_no_complaint_but_of_what_was_not_excited(good) -> None:
    levels = Page(good).levels
    assert "bad" not in levels and levels.count("good") >= 8
    assert len(re.findall("what is left of (position|acceleration) is white noise", good)) == 2
    assert "beyond the range of the fit" in good  # the input of the validation is half as strong again
    assert re.search(r"<th[^>]*>position</th><td class=\"text\">output</td><td class=\"text\">m</td>.*?<td>20</td>", good)


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_a_wrong_posterior_is_called_wrong(tmp_path, caplog) -> None:
    wrong = draws(k=25.0)
    wrong["posterior"]["k"][1] += 2.0  # and the chains disagree
    with caplog.at_level("INFO"):
        text = sid.report(MODEL, wrong, path=tmp_path / "bad.html").read_text()
    assert not [line for line in caplog.messages if line.startswith("Sampling")]  # of the prior, which is the report's affair
    assert "Nothing was tried on a record that the fit has not seen" in text
    assert Page(text).levels.count("bad") >= 3
    tried = sid.report(MODEL, draws(k=25.0), validation=OTHER, path=tmp_path / "tried.html").read_text()
    assert re.search("what is left of position is (no noise, it follows the input|not white)", tried)
    assert "The chains disagree" in text and "are not white" in text and "a free run drifts away" in text


@pytest.mark.usefixtures("unrendered")
def test_several_models_are_compared(tmp_path) -> None:
    free = build(damped=False)
    other = draws(1)
    del other["posterior"]["c"]
    pairs = {"damped": (MODEL, draws()), "free <1>": (free, other)}
    new = OTHER.replace(units={"position": "m", "acceleration": "m/s^2"})
    text = sid.report(pairs, validation=sid.Validation(new, runs=20), path=tmp_path / "both.html").read_text()
    page = Page(text)
    assert page.headings[0] == "Comparison" and "free <1>" in page.headings
    assert 'href="#model-free--1-"' in text and 'id="model-free--1-"' in text
    assert text.index("LOO") < text.index('id="model-damped"')
    assert page.headings.index("Validation") < page.headings.index("What the columns mean")
    for title in ("RMSE[position] (m)", "MSE[position] (m²)", "MSE[acceleration] ((m/s^2)²)", "fit[position] (%)"):
        assert f"<th>{title}</th>" in text
    assert ">unit<" in text.partition('id="model-damped"')[0] and ">unit<" not in text.partition('id="model-damped"')[2]


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_a_report_calls_an_output_by_one_name_and_says_which_the_record_has(tmp_path) -> None:
    system = linear_oscillator(lambda t, x, dx, u, p: x.z)  # its output is called y
    record = sid.TimeSeries(RECORD.t, RECORD.u, RECORD.y[:, 0], inputs="F", outputs="Disp", intersample="foh")
    with pm.Model() as model:
        params = {"c": pm.HalfNormal("c", 1.0), "k": pm.Normal("k", 20.0, 20.0)}
        sid.ODEFilter("y", system, record, params, noise=pm.HalfNormal("noise", 0.1), substeps=1)
    new = record.replace(y=OTHER.y[:, 0], u=OTHER.u, t=OTHER.t)
    both = {"one": (model, draws()), "two": (model, draws(1))}
    for first in ((model, draws(), record), (both,)):
        page = sid.report(*first, validation=sid.Validation(new, runs=10), path=tmp_path / "y.html", units={"Disp": "m"})
        text = page.read_text()
        assert text.count("output, recorded as Disp") == 2 and text.count("Disp") == 2
        assert checksum(record) in text  # read back from the model, too
        assert re.search(r"explains [\d.]+ % of y \(RMSE [\d.]+ m\)", text)
        assert f'href="{page.as_uri()}"' in page._repr_html_() and ">" + str(page) + "<" in page._repr_html_()


@pytest.mark.usefixtures("unrendered")
def test_outputs_of_a_validation_record_in_another_order_are_refused(tmp_path) -> None:
    swapped = OTHER.replace(y=OTHER.y[:, ::-1], outputs=("acceleration", "position"))
    with pytest.raises(ValueError, match="the same in another order"):
        sid.report(MODEL, draws(), validation=swapped, path=tmp_path / "x.html")


def test_a_report_says_what_it_was_made_of_before_its_sections_and_checks_as_sentences(good) -> None:
    facts = good.index('class="facts"')
    assert good.index("<nav>") < facts < good.index("In short", facts) and "SHA-256" in good[facts : facts + 900]
    integration = good.partition(">Integration</h2>")[2].partition("<h2")[0]
    assert "<pre>" not in integration and "<li>Log-likelihood changes by" in integration


def test_an_interactive_report_brings_its_script_along_and_keeps_still_figures_for_paper(tmp_path) -> None:
    text = sid.report(MODEL, draws(), RECORD, path=tmp_path / "zoom.html", interactive=True).read_text()
    assert not re.search(r"<script[^>]+src=|<link", text) and Page(text).headings
    body = text.partition("<body>")[2]
    assert body.count("Plotly.newPlot(") == body.count('class="zoomable"') == 2 + 2  # fits and innovations of two outputs
    assert body.count('class="still"') == 2  # fits; the still figure of residuals has other panels, too
    assert len(text) - len(body) > 3_000_000  # the script is in the head


def test_an_interactive_report_is_refused_without_plotly_before_anything_is_computed(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ImportError, match=r"report\(interactive=True\) needs plotly"):
        sid.report(MODEL, draws(), RECORD, path=tmp_path / "zoom.html", interactive=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        ((MODEL,), {}, ValueError, "idata is None"),
        (({},), {}, TypeError, "give a pm.Model, or a dict"),
        ((draws(),), {}, TypeError, r"the model comes before it; give report\(model, idata\)"),
        (({"a": MODEL},), {}, ValueError, "give a tuple"),
        (({"a": (MODEL, draws())}, draws()), {}, ValueError, "beside a dict of models"),
        ((MODEL, draws(), OTHER), {}, ValueError, "its outputs differ"),
        ((MODEL, draws()), {"validation": 3}, TypeError, "give a TimeSeries"),
        ((MODEL, draws()), {"validation": RECORD.replace(y=None, outputs=None)}, ValueError, "has no outputs"),
        ((pm.Model(), draws()), {}, ValueError, "has no ODEFilter"),
    ],
)
def test_doors(arguments, options, error, message, tmp_path) -> None:
    with pytest.raises(error, match=message):
        sid.report(*arguments, path=tmp_path / "x.html", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_check_of_substeps_agrees_with_sampling_weights_by_hand() -> None:
    """Reweighting by hand, from the log-likelihoods of two models that differ in their substeps alone."""
    posterior = draws(n=50)
    check = sid.check_substeps(posterior, model=MODEL, draws=100)
    sums = []
    for substeps in (1, 2):
        with pm.Model() as model:
            params = {"c": pm.HalfNormal("c", 1.0), "k": pm.Normal("k", 20.0, 20.0)}
            sid.ODEFilter("y", SYSTEM, RECORD, params, noise=pm.HalfNormal("noise", 0.1), substeps=substeps)
        target = sid.Target(model)
        flat = {n: posterior["posterior"][n].to_numpy().ravel() for n in ("c", "k", "noise")}
        sums.append(target.log_likelihood(target.unconstrained(flat)))
    change = sums[1] - sums[0]
    np.testing.assert_allclose(np.sort(check.change), np.sort(change), rtol=1e-6, atol=1e-7)
    weights = np.exp(change - change.max())
    weights /= weights.sum()
    k = flat["k"]
    assert check.shift["k"] == pytest.approx((weights @ k - k.mean()) / k.std(), abs=1e-6)
    assert check.ess == pytest.approx(1 / (100 * np.sum(weights**2)))
    assert check.level == "good" and "does not matter" in repr(check)


def test_the_check_of_substeps_sees_a_coarse_step() -> None:
    coarse = sid.TimeSeries(RECORD.t[::6], RECORD.u[::6], RECORD.y[::6], inputs="F", intersample="foh")
    with pm.Model() as model:
        params = {"c": pm.HalfNormal("c", 1.0), "k": pm.Normal("k", 20.0, 20.0)}
        with pytest.warns(sid.SubstepWarning):
            sid.ODEFilter("y", SYSTEM, coarse, params, noise=0.001, solver=sid.EK0(order=2), substeps=1)
    posterior = draws()
    del posterior["posterior"]["noise"]
    check = sid.check_substeps(posterior, model=model)
    assert check.level == "bad" and "sample again" in check.verdict
    with pm.Model() as fixed:  # a number is no parameter: its steps are judged
        params = {"c": pm.HalfNormal("c", 1.0), "k": pm.Normal("k", 20.0, 20.0)}
        with pytest.warns(sid.SubstepWarning):
            sid.ODEFilter("y", SYSTEM, coarse, params, noise=0.001, solver=sid.EK0(order=2, diffusion=1.0), substeps=1)
    check = sid.check_substeps(posterior, model=fixed)
    assert not check.free_diffusion and check.level == "bad"


def test_process_noise_by_a_diffusion_is_no_integration_error_and_free_runs_lack_it() -> None:
    coarse = sid.TimeSeries(RECORD.t[::6], RECORD.u[::6], RECORD.y[::6], inputs="F", intersample="foh")
    with pm.Model() as model:
        params = {"c": pm.HalfNormal("c", 1.0), "k": pm.Normal("k", 20.0, 20.0)}
        solver = sid.EK0(order=2, diffusion=pm.HalfNormal("g", 1.0))
        with pytest.warns(sid.SubstepWarning, match="process noise may be meant for this number of steps"):
            sid.ODEFilter("y", SYSTEM, coarse, params, noise=0.001, solver=solver, substeps=1)
    posterior = draws()
    del posterior["posterior"]["noise"]
    g = xr.DataArray(np.random.default_rng(0).uniform(0.01, 0.02, (2, 400)), dims=("chain", "draw"))
    posterior["posterior"] = xr.DataTree(posterior["posterior"].to_dataset().assign(g=g))
    check = sid.check_substeps(posterior, model=model)
    assert check.free_diffusion and check.level == "look"
    assert "belongs to what it means" in check.verdict and "set_substeps" not in check.verdict
    with pytest.warns(UserWarning, match="the diffusion of 'y' is a parameter: it stands for process noise"):
        sid.predict(posterior, coarse, model=model, x0=0.0, draws=3)
    assert sid.settle_substeps(posterior, model=model)["y"].substeps == 1  # without a warning: they belong to the diffusion


def test_channels_in_another_order_than_the_systems_are_refused() -> None:
    swapped = RECORD.replace(y=RECORD.y[:, ::-1], outputs=("acceleration", "position"))
    with pytest.raises(ValueError, match="the same in another order"):
        sid.predict(draws(), swapped, model=MODEL)


def test_residuals_of_irregular_records_stand_over_their_times() -> None:
    e = np.random.default_rng(0).standard_normal(160)
    axes = sid.plot_residuals(e, t=RECORD.t, lags=10)
    low, high = axes[0, 0].get_xlim()
    assert (low, high) == pytest.approx((RECORD.t[0], RECORD.t[-1])) and axes[0, 0].get_xlabel() == "time (s)"
    assert sid.plot_residuals(e, fs=None, lags=10)[0, 0].get_xlabel() == "sample"
    with pytest.raises(ValueError, match="give 160 finite times"):
        sid.plot_residuals(e, t=RECORD.t[:-1], lags=10)
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("option, value", [("factor", 1), ("factor", 2.5), ("draws", 0), ("draws", True)])
def test_the_check_of_substeps_has_doors(option, value) -> None:
    with pytest.raises(ValueError, match=f"{option} is {value!r}; give a whole number"):
        sid.check_substeps(draws(), model=MODEL, **{option: value})


def test_predictions_begin_where_the_record_does() -> None:
    """The true start is (0.1, 1.0); read off five noisy samples the velocity would be far off."""
    runs = sid.predict(draws(), OTHER, model=MODEL, draws=5)
    assert abs(float(runs["z"][0, 0]) - 0.1) < 0.01 and abs(float(runs["v"][0, 0]) - 1.0) < 0.02
    error = sid.rmse(OTHER.y, np.stack([runs["position"], runs["acceleration"]], axis=-1).mean(axis=0))
    np.testing.assert_allclose(error, NOISE, rtol=0.2)
    with pytest.raises(ValueError, match="x0 is 'best'; give 'fit', or numbers"):
        sid.predict(draws(), OTHER, model=MODEL, x0="best")
    with pytest.raises(ValueError, match="x0='fit' needs a record with the outputs"):
        sid.predict(draws(), OTHER.replace(y=None, outputs=None), model=MODEL, x0="fit")


@pytest.mark.parametrize("jitter", [0.0, 0.4])
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.1])
def test_the_level_of_noise_is_seen_without_a_model(noise, jitter) -> None:
    rng = np.random.default_rng(3)
    t = (np.arange(2000) + jitter * rng.uniform(size=2000)) / 50
    y = np.sin(2 * np.pi * t) + noise * rng.standard_normal(2000)
    y[::37] = np.nan
    y[5::411] = 50.0  # outliers
    (level,) = noise_level([sid.TimeSeries(t, None, y)])
    assert 0.9 < level / noise < 1.2


def test_a_wide_prior_of_the_noise_does_not_hide_the_integration_error(caplog) -> None:
    """With the noise the prior expects one step a sample would do; the noise of the data is a thousandth of that."""
    t = np.arange(300) / 20
    u = np.sin(t**1.2)
    run = sid.simulate(SYSTEM, sid.TimeSeries(t, u, None, inputs="F"), TRUTH, x0=0.0)
    y = np.stack([run["position"], run["acceleration"]], axis=-1)
    record = sid.TimeSeries(t, u, y + 1e-3 * np.random.default_rng(0).standard_normal(y.shape), inputs="F")
    chosen = {}
    for label in ("fixed", "free"):
        with pm.Model() as model:
            noise = pm.HalfNormal("noise", 1.0) if label == "free" else 0.5
            rv = sid.ODEFilter("y", SYSTEM, record, TRUTH, noise=noise, solver=sid.EK1(order=3))
        chosen[label] = model["y"].owner.op.substeps
        assert rv is model["y"]
    assert chosen["free"] >= 2 * chosen["fixed"]


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_a_linear_model_of_a_hardening_spring_is_not_called_fine(tmp_path) -> None:
    """Its estimated noise is as large as what it lacks, so that the error is "1.00 times the noise" whatever the fit."""
    duffing, t = sid.models.duffing(), np.arange(400) / 20
    u = 6.0 * np.sin(1.8 * t) + 4.0 * np.sin(3.1 * t + 1.0)
    truth = {"m": 1.0, "c": 0.3, "k": 4.0, "k3": 3.0}
    run = sid.simulate(duffing, sid.TimeSeries(t, u, None), truth, x0=0.0, substeps=16)["y"].values
    record = sid.TimeSeries(t, u, run + 0.01 * np.random.default_rng(0).standard_normal(400))

    def fitted(cubic: bool) -> str:
        with pm.Model() as model:
            params = {"m": 1.0, "c": pm.LogNormal("c", np.log(0.3), 0.5), "k": pm.LogNormal("k", np.log(5.0), 0.7), "k3": 0.0}
            if cubic:
                params["k3"] = pm.LogNormal("k3", np.log(3.0), 0.5)
            noise = pm.HalfNormal("noise", 1.0)
            sid.ODEFilter("y", duffing, record, params, noise=noise, x0=0.0, solver=sid.EK1(order=3), substeps=4)
        mode = sid.find_mode(model, prior_draws=0)
        rng = np.random.default_rng(0)
        values = {k: (("chain", "draw"), np.asarray(v) * np.exp(0.002 * rng.standard_normal((2, 300))))
                  for k, v in mode.initvals.items()}  # fmt: skip
        idata = xr.DataTree.from_dict({"posterior": xr.Dataset(values)})
        return sid.report(model, idata, record, path=tmp_path / f"{cubic}.html").read_text()

    linear, cubic = fitted(cubic=False), fitted(cubic=True)
    assert "as small as can be" not in linear and "white: no dynamics" not in linear
    line = r'<li class="(\w+)"><b>[^<]*</b> Free run on the record of the fit, y: fit ([\d.-]+) %; its error is ([\d.]+) times'
    said, right = re.search(line, linear), re.search(line, cubic)
    assert said and said.group(1) != "good" and float(said.group(3)) < 1.2
    assert "this noise covers what the structure lacks" in linear
    assert right and right.group(1) == "good"


@pytest.mark.slow
def test_a_report_says_what_linearising_about_an_uncertain_start_costs(tmp_path) -> None:
    """A pendulum released from 2.5 rad, of whose start the filter knows little: seen whoever sampled."""
    pendulum = sid.System(
        lambda t, x, u, p: (x.speed, -p.g * pt.sin(x.angle)),
        states=("angle", "speed"), params=("g",), observe=lambda t, x, dx, u, p: x.angle,
    )  # fmt: skip
    t = 0.1 * np.arange(60)
    run = sid.simulate(pendulum, sid.TimeSeries(t, None), {"g": 9.81}, x0={"angle": 2.5, "speed": 0.0}, substeps=16)
    record = sid.TimeSeries(t, None, run["angle"].to_numpy() + 0.02 * np.random.default_rng(0).standard_normal(60))
    g = np.random.default_rng(1).normal(9.81, 0.1, (2, 20))
    levels = {}
    for name, start in (("about zero", {"x0_std": {"angle": 2.0, "speed": 3.0}}), ("known", {})):
        with pm.Model() as model:
            sid.ODEFilter("y", pendulum, record, {"g": pm.Normal("g", 9.81, 1.0)}, noise=0.02, x0=0.0, substeps=4, **start)
        study = Study(model, xr.DataTree.from_dict({"posterior": xr.Dataset({"g": (("chain", "draw"), g)})}), {"y": [record]})
        study._integration()
        levels[name] = [v.level for v in study.verdicts if "initial state" in v.text]
    assert levels == {"about zero": ["bad"], "known": []}


LAG = sid.System(
    lambda t, x, u, p: p.rate * (u.F - x.level),
    states=("level",),
    inputs=("F",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: {"level": x.level},
)


type Limits = tuple[float | None, float | None]


def judged(noise: str, error: np.ndarray, rate: float = 1.0, limits: Limits = (None, None)) -> list:
    """Verdicts on the fit of a lag, and on a record of validation, whose errors are given."""
    return [v for v in studied(noise, error, rate, limits)[0].verdicts if "fit " in v.text]


def studied(noise: str, error: np.ndarray, rate: float = 1.0, limits: Limits = (None, None)) -> tuple[Study, list]:
    """What is found about the fit of a lag, and about a record of validation, whose errors are given; blocks of the page."""
    t = np.arange(len(error)) * 0.1
    u = np.sin(0.9 * t)
    run = sid.simulate(LAG, sid.TimeSeries(t, u, None, inputs="F"), {"rate": 1.0}, x0=0.0)["level"].to_numpy()
    low, high = limits
    seen = np.clip(run + error, -np.inf if low is None else low, np.inf if high is None else high)
    data = sid.TimeSeries(t, u, seen, inputs="F", outputs="level")
    options = {
        "white": {"noise": 0.05},
        "coloured": {"noise": 0.02, "coloured": {"level": sid.OU(scale=0.2, length=1.0)}},
        "outliers": {"noise": sid.StudentT(nu=4, scale=0.02)},
    }[noise]
    if limits != (None, None):
        options["limits"] = limits
    with pm.Model() as model:
        value = pm.Normal("rate", 1.0, 1.0)
        solver = sid.EK1(order=3, diffusion=1e-3)
        sid.ODEFilter("y", LAG, data, {"rate": value}, x0=0.0, solver=solver, substeps=2, **options)
    posterior = xr.Dataset({"rate": (("chain", "draw"), np.full((1, 2), rate))})
    new = sid.Validation(data.replace(u=u + 1e-9), x0={"level": 0.0})  # another record with these errors
    study = Study(model, xr.DataTree.from_dict({"posterior": posterior}), {"y": [data]}, new)
    return study, [*study._fit(), *study._validation()]


def errors(noise: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    white = 0.02 * rng.standard_normal(400)
    if noise == "outliers":
        white[::20] += 0.4
        return white
    colour, stay = np.zeros(400), np.exp(-0.1)
    for k in range(1, 400):
        colour[k] = stay * colour[k - 1] + 0.2 * np.sqrt(1 - stay**2) * rng.standard_normal()
    return white + colour


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
@pytest.mark.filterwarnings("ignore:substeps=2")
@pytest.mark.parametrize("noise", ["coloured", "outliers"])
def test_a_right_model_is_not_called_wrong_for_its_noise(noise) -> None:
    """Errors are measured by all of the noise: its coloured part, or by their probability under a t distribution."""
    fit, tried = judged(noise, errors(noise))
    assert fit.level != "bad" and tried.level != "bad"
    ratios = [float(re.search("error is (.*) times the noise", v.text)[1]) for v in (fit, tried)]
    assert np.all(np.less(ratios, 1.5)) and np.all(np.greater(ratios, 0.5))
    assert "has taken up" not in fit.text + tried.text
    assert all(v.level == "bad" for v in judged(noise, errors(noise), rate=0.2))


@pytest.mark.usefixtures("unrendered")
@pytest.mark.filterwarnings("ignore:substeps=2")
@pytest.mark.parametrize("noise", ["white", "outliers"])
def test_residuals_are_compared_with_the_noise_of_the_model(noise) -> None:
    """Errors of a t distribution are as they should be where the model says so, and are not normal where it does not."""
    study, _ = studied(noise, 0.02 * np.random.default_rng(1).standard_t(4.0, 400))
    study.verdicts.clear()
    study._residuals()
    said = " ".join(v.text for v in study.verdicts if "outliers" in v.text or "degrees of freedom" in v.text)
    if noise == "white":
        assert said.startswith("Innovations of level are not normal, as the model takes them to be")
    else:
        assert not said
        even = studied(noise, 0.02 * np.random.default_rng(1).choice([-1.0, 1.0], 400))[0]
        even._residuals()
        assert any("do not follow the t distribution with 4 degrees of freedom" in v.text for v in even.verdicts)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.filterwarnings("ignore:substeps=2")
@pytest.mark.parametrize("offset", [0.0, 0.035])
def test_a_sensor_with_an_offset_leaves_no_noise(offset: float) -> None:
    """The tests of the correlations leave the mean out, and a noise that is estimated takes it up."""
    study, _ = studied("white", 0.05 * np.random.default_rng(1).standard_normal(400) + offset)
    study._residuals()
    said = [v.text for v in study.verdicts if v.level != "good"]
    if not offset:
        assert not said
    else:
        assert sum("covers what the structure lacks" in text for text in said) == 2
        assert any("Innovations of level are not centred on zero (mean 0." in text for text in said)


@pytest.mark.usefixtures("unrendered")
def test_an_input_without_its_effect_is_seen_wherever_it_stands() -> None:
    rng, t = np.random.default_rng(1), np.arange(400) * 0.1
    u, w = np.sin(0.9 * t), rng.standard_normal(400)
    run = sid.simulate(LAG, sid.TimeSeries(t, u, None, inputs="F"), {"rate": 1.0}, x0=0.0)["level"].to_numpy()
    two = sid.System(
        lambda t, x, u, p: p.rate * (u.F - x.level),
        states=("level",),
        inputs=("F", "w"),
        params=("rate",),
        observe=lambda t, x, dx, u, p: {"level": x.level},
    )
    data = sid.TimeSeries(t, np.c_[u, w], run + 0.05 * (rng.standard_normal(400) + w), inputs=("F", "w"), outputs="level")
    with pm.Model() as model:
        solver = sid.EK1(order=3, diffusion=1e-3)
        sid.ODEFilter("y", two, data, {"rate": pm.Normal("rate", 1.0, 1.0)}, noise=0.07, x0=0.0, solver=solver, substeps=2)
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"rate": (("chain", "draw"), np.ones((1, 2)))})})
    new = sid.Validation(data.replace(u=np.c_[u + 1e-9, w]), x0={"level": 0.0})  # another record with these errors
    study = Study(model, tree, {"y": [data]}, new)
    for section in (study._residuals, study._fit, study._validation):
        section()
    said = [v.text for v in study.verdicts if v.level != "good"]
    assert sum("follows the input w (correlation 0.6" in text for text in said) >= 2
    assert any("Innovations of level follow the input w (correlation 0.6" in text for text in said)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.filterwarnings("ignore:substeps=2")
def test_samples_at_a_limit_are_no_evidence_of_a_good_fit() -> None:
    """Run and record are both cut off there, so that they agree whatever the model is."""
    error = 0.05 * np.random.default_rng(1).standard_normal(400)
    found = judged("white", error, limits=(None, 0.3))
    ratios = [float(re.search("error is (.*) times the noise", v.text)[1]) for v in found]
    np.testing.assert_allclose(ratios, 1.0, atol=0.2)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.filterwarnings("ignore:substeps=2")
def test_figures_compare_the_samples_that_the_text_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    titles = []

    def drawn(*args: object, **options: object) -> object:
        axes = sid.plot_fit(*args, **options)
        titles.append(axes[1, 0].get_title(loc="right"))
        return axes

    monkeypatch.setattr("pm_sysid.reports.sections.plot_fit", drawn)
    error = 0.05 * np.random.default_rng(1).standard_normal(400)
    _, blocks = studied("white", error, limits=(None, 0.3))
    score = re.compile(r"RMSE (\S+), fit (\S+) %")
    texts = [found for b in blocks if isinstance(b, Paragraph) and (found := score.search(b.text))]
    captions = [b.caption for b in blocks if isinstance(b, Figure)]
    assert sum("samples at a limit of the sensor are left out" in c for c in captions) == len(texts) == len(titles) == 2
    for shown, found in zip(map(score.search, titles), texts, strict=True):
        np.testing.assert_allclose([float(v) for v in shown.groups()], [float(v) for v in found.groups()], rtol=6e-3)


PUSHED = sid.System(
    lambda t, x, u, p: (x.v, u.F + u.d - 0.4 * x.v - p.k * x.z),
    states=("z", "v"),
    inputs=("F", "d"),
    params=("k",),
    observe=lambda t, x, dx, u, p: x.z,
)
GUST = sid.OU(scale=0.5, length=0.6)


def pushed(seed: int) -> sid.TimeSeries:
    """A record of an oscillator that a gust pushes beside the known force."""
    t = np.arange(300) * 0.1
    given = sid.TimeSeries(t, 4.0 * np.sin(0.8 * t) + 3.0 * np.sin(2.2 * t + seed), inputs="F")
    run = sid.simulate(PUSHED, given, {"k": 9.0}, x0=0.0, latent={"d": GUST}, random_seed=seed)["y"].to_numpy()
    return given.replace(y=run + 0.02 * np.random.default_rng(seed).standard_normal(len(t)))


def judged_with_a_gust(k: float) -> Study:
    """Report of a model with the gust as a process, and with the stiffness k."""
    with pm.Model() as model:
        params = {"k": pm.Normal("k", 9.0, 1.0)}
        options = {"noise": 0.02, "x0": {"z": 0.0, "v": 0.0}, "solver": sid.EK1(order=2), "substeps": 4}
        sid.ODEFilter("y", PUSHED, pushed(1), params, latent={"d": GUST}, **options)
    posterior = xr.Dataset({"k": (("chain", "draw"), np.full((1, 100), k))})
    new = sid.Validation(pushed(2), x0={"z": 0.0, "v": 0.0})
    study = Study(model, xr.DataTree.from_dict({"posterior": posterior}), {"y": [pushed(1)]}, new)
    study._fit()
    study._residuals()
    study._validation()
    return study


@pytest.mark.usefixtures("unrendered")
def test_a_right_model_is_not_called_wrong_for_a_force_that_nobody_recorded() -> None:
    """Its free runs are far from the new record, as they have to be."""
    study = judged_with_a_gust(9.0)
    assert [v for v in study.verdicts if v.level == "bad"] == []
    fit, new = (next(v for v in study.verdicts if what in v.text) for what in ("inferred from it", "drawn from the prior"))
    assert fit.level == new.level == "good"
    seen, unseen = study.scores
    assert (seen.new, unseen.new, seen.unknown) == (False, True, "d") and seen.fit > 95 > unseen.fit
    assert headline({"model": study}).startswith("A free run (d unknown) explains")
    study.scores.pop()
    assert headline({"model": study}).startswith("With d inferred from it, the model explains")


def test_a_wrong_model_is_not_called_right_because_a_force_explains_the_rest() -> None:
    """A stiffness that is a third off fits the record as well, with another force; a new record shows it."""
    study = judged_with_a_gust(6.0)
    assert study.scores[0].fit > 95
    assert next(v for v in study.verdicts if "inferred from it" in v.text).level != "good"
    assert next(v for v in study.verdicts if "drawn from the prior" in v.text).level == "bad"


def test_squares_of_inputs_are_shown_where_residuals_follow_them() -> None:
    e, u = np.random.default_rng(1).standard_normal((2, 500))
    for residuals, name, title in ((e, "F", ""), (e + 0.3 * (u**2 - 1), "F squared", ", beside the input F squared")):
        tested = _tested("run", residuals, {"F": u})
        assert isinstance(tested, tuple) and tested[0].cross_input == name and _beside({"F": u}, tested[0]) == title


def test_modes_that_draws_lack_are_a_problem_unless_their_sampler_has_looked(tmp_path) -> None:
    """What draws of PyMC's samplers look like that are all in one of two modes: of a swing whose direction is not measured."""
    t = np.arange(30) * 0.2
    system = sid.System(
        lambda t, x, u, p: (x.v, -4.0 * x.z), states=("z", "v"), params=("v0",), observe=lambda t, x, dx, u, p: x.z**2
    )
    y = np.sin(2 * t) ** 2 + 0.1 * np.random.default_rng(0).standard_normal(t.size)
    with pm.Model() as model:
        v0 = pm.Normal("v0", 0.0, 3.0)
        record = sid.TimeSeries(t, None, y)
        sid.ODEFilter("y", system, record, {"v0": v0}, noise=0.1, x0={"z": 0.0, "v": v0}, substeps=8)
    exact = pm.sample(400, tune=400, model=model, **ONE_MODE, initvals={"v0": 2.0})
    text = sid.report(model, exact, path=tmp_path / "one.html").read_text()
    assert "The draws lack a place with about 5" in text and "near v0 = -" in text and "bad" in Page(text).levels
    exact.attrs["trusted"] = 1
    assert "The draws lack" not in sid.report(model, exact, path=tmp_path / "looked.html").read_text()
    exact.attrs.pop("trusted")
    both = exact.copy(deep=True)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], both["posterior"]["v0"].shape)
    both["posterior"] = xr.DataTree(both["posterior"].to_dataset().assign(v0=both["posterior"]["v0"] * signs))
    assert "have found no mode that the draws lack" in sid.report(model, both, path=tmp_path / "both.html").read_text()
