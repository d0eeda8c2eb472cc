"""Sections of a report on one model: equations, parameters, diagnostics, fit, residuals, integration, validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy
import xarray as xr
from markupsafe import Markup

from pm_sysid.compat import silent_draws
from pm_sysid.idata import labelled, labels, posterior_of
from pm_sysid.inference.mode_check import check_modes
from pm_sysid.likelihood.filter_view import FilterView, filter_view
from pm_sysid.plots.correlation import plot_correlation
from pm_sysid.plots.fit import plot_fit
from pm_sysid.plots.prior_posterior import plot_prior_posterior
from pm_sysid.plots.residuals import plot_residuals
from pm_sysid.plots.zoomable import fit_over_time, residuals_over_time
from pm_sysid.posterior.initial_state_check import (
    InitialStateCheck,
    check_initial_state,
    linearises_initial_state,
)
from pm_sysid.posterior.innovations import innovations
from pm_sysid.posterior.intersample_check import check_intersample
from pm_sysid.posterior.predict import Source, distance_rank, predict, predict_fitted, without_processes
from pm_sysid.posterior.process_check import ProcessCheck, check_processes
from pm_sysid.posterior.substep_check import SubstepCheck, check_substeps
from pm_sysid.records.metrics import fit_percent, rmse
from pm_sysid.records.overlap import shared_samples
from pm_sysid.records.residual_tests import ResidualTests, between_outputs, input_tests, with_squares
from pm_sysid.records.timeseries import BETWEEN_SAMPLES, TimeSeries
from pm_sysid.reports import verdicts
from pm_sysid.reports.blocks import Block, Listed, Paragraph, Printed, Table
from pm_sysid.reports.diagnostics import Diagnostics, diagnose, parameter_rows
from pm_sysid.reports.drawing import equation, figure, zoomable
from pm_sysid.reports.learned import learned
from pm_sysid.reports.validation import Validation
from pm_sysid.reports.verdicts import Verdict
from pm_sysid.solve.substeps import counted
from pm_sysid.symbolic.processes import MaternKind

#: Draws from the prior, where the result has none or fewer than are needed to say where it ends.
PRIOR_DRAWS, LEAST_PRIOR_DRAWS = 1000, 100


#: Tests of residuals and the number of lags to draw, or why there are none.
type Tested = tuple[ResidualTests, int] | Paragraph


class Score(NamedTuple):
    """How far a free run is from a measurement: on a record that the fit has not seen, if ``new``.

    ``unknown`` are the processes, empty if there are none: drawn from their prior on a new record, inferred on the other.
    """

    output: str
    error: float
    unit: str
    fit: float
    new: bool
    unknown: str = ""

    def __str__(self) -> str:
        return f"{self.fit:.1f} % of {self.output} (RMSE {self.error:.3g}{f' {self.unit}' if self.unit else ''})"


class Noise(NamedTuple):
    """Noise of outputs: standard deviation (n_y,) or (R, n_y), and degrees of freedom (n_y,) of a t distribution.

    ``std`` is that of white and coloured noise together, NaN for coloured noise that has none, such as a random walk. Where
    ``freedom`` is finite, it is the scale.
    """

    std: np.ndarray
    freedom: np.ndarray

    def scores(self, output: int, errors: np.ndarray) -> np.ndarray:
        """Errors in units of the noise; of a t distribution, the normal numbers of the same probability."""
        units = errors / self.std[output]
        if np.isinf(self.freedom[output]):
            return np.asarray(units)
        tail = scipy.stats.t.sf(np.abs(units), self.freedom[output])
        return np.asarray(np.sign(units) * scipy.stats.norm.isf(np.maximum(tail, np.finfo(float).tiny)))

    def drawn(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """White noise of outputs (..., n_y)."""
        heavy, white = np.isfinite(self.freedom), rng.standard_normal(shape)
        if heavy.any():
            white[..., heavy] = rng.standard_t(self.freedom[heavy], (*shape[:-1], int(heavy.sum())))
        return np.asarray(self.std * white)


@dataclass
class Study:
    """A model, its posterior and its records; each section adds to the verdicts."""

    model: pm.Model
    idata: Any
    records: Mapping[str, list[TimeSeries]]  # by filter
    validation: Validation = field(default_factory=Validation)
    units: Mapping[str, str] = field(default_factory=dict)
    interactive: bool = False  # fit and residuals zoom
    verdicts: list[Verdict] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    _innovations: dict[str, dict[str, tuple[np.ndarray, Tested]]] = field(default_factory=dict, init=False, repr=False)

    def sections(self) -> Iterator[tuple[str, Callable[[], list[Block]]]]:
        """Titles of all sections and what makes their blocks, in the order of a reader's questions."""
        yield "Equations", self._equations
        yield "Parameters", self._parameters
        yield "Fit", self._fit
        yield "Residuals", self._residuals
        yield "Integration", self._integration
        if self.validation.all:
            yield "Validation", self._validation
        else:
            text = (
                "Nothing was tried on a record that the fit has not seen; give one by validation=... to know how far it holds."
            )
            self.verdicts.append(Verdict("look", text))

    @cached_property
    def names(self) -> list[str]:
        """Free variables."""
        return [str(v.name) for v in self.model.free_RVs]

    @cached_property
    def noise(self) -> dict[str, Noise]:
        """Noise of each output of each filter, averaged over the posterior."""
        found = {}
        for name in self.records:
            source = Source(self.idata, self.model, name)
            places = np.linspace(0, source.total - 1, min(50, source.total)).round().astype(int)
            unknowns, system = source.view.unknowns, source.system
            noise, theta = (v.mean(axis=0) for v in source.values([unknowns.noise, unknowns.params], places))
            n_y, freedom, variance = len(system.outputs), np.full(noise.shape[-1], np.inf), noise**2
            sensors = source.view.problem.form.sensors
            numbers, _ = sensors.entries(list(np.moveaxis(noise, -1, 0)), n_y)
            for j in sensors.heavy:
                freedom[j] = np.mean(numbers[j][0])  # all records share it
            for one in _coloured(source.view):
                scale = np.array(np.nan)
                if isinstance(one.kind, MaternKind):
                    scale = theta[..., system.params.index(f"noise {one.name}.scale")]
                variance[..., system.outputs.index(one.name)] += scale**2
            found[name] = Noise(np.sqrt(variance[..., :n_y]), freedom[:n_y])
        return found

    def _noise(self, name: str, record: int | None) -> Noise:
        """Noise on a record, the root mean square of all where it is not said which."""
        found = self.noise[name]
        if found.std.ndim == 1:
            return found
        std = np.sqrt(np.mean(found.std**2, axis=0)) if record is None else found.std[record]
        return found._replace(std=std)

    def _equations(self) -> list[Block]:
        blocks: list[Block] = []
        for name in self.records:
            view = filter_view(name, self.model)
            problem, form, substeps = view.problem, view.problem.form, view.op.substeps
            blocks += [equation(line) for line in problem.system.equations]
            solver = f"EK{1 if form.linearisation else 0} of order {form.order}"
            diffusion = "quasi-maximum-likelihood" if problem.calibrated else "dynamic" if form.dynamic else "fixed or free"
            grids = view.op.grid.choice.grids
            steps = f"{counted(substeps, 'filter steps')} a sample"
            if grids is not None:
                steps = f"{substeps * sum(g.total for g in grids)} filter steps of different lengths in all"
            given = ", with the likelihood of the record given the ODE everywhere (Fenrir)" if form.everywhere else ""
            text = Markup(
                f"Solved by a probabilistic filter, {solver}, {diffusion} diffusion, {steps}{given}; "
                f"the input is {BETWEEN_SAMPLES[self.records[name][0].intersample]} between samples. "
                "Measured as <i>{}</i> in the variable <i>{}</i>."
            )
            blocks.append(Paragraph(text.format(", ".join(problem.system.outputs), name)))
            blocks.append(Printed("\n".join(problem.system.equations), summary="LaTeX"))
        return blocks

    def _parameters(self) -> list[Block]:
        posterior = posterior_of(self.idata)
        found = diagnose(posterior, self.names)
        priors = {str(v.name): _prior_text(v) for v in self.model.free_RVs}
        with_prior, known = self._prior()
        header = ["", "unit", "prior", "94 % of prior", "mean", "sd", "94 % of posterior", "R-hat", "ESS bulk", "ESS tail"]
        blocks: list[Block] = [Table(header, parameter_rows(found, priors, known, self.units), texts=(1, 2)).without_empty()]
        self.verdicts += verdicts.sampling(self.idata, found)
        self.verdicts += self._elsewhere()
        before = with_prior["prior"].to_dataset() if "prior" in with_prior.children else None
        self.verdicts += verdicts.information(learned(posterior, before, self.names))
        blocks += self._potentials()

        densities = partial(plot_prior_posterior, with_prior, var_names=self.names)
        blocks.append(figure("Densities of the posterior and, where it fits in, of the prior", densities, self.units))
        if len(found.names) > 1:
            correlations = partial(plot_correlation, posterior, var_names=self.names)
            blocks.append(figure("Posterior correlation", correlations, self.units))
        blocks.append(self._attributes(posterior))
        if choices := str(getattr(self.idata, "attrs", {}).get("choices", "")):
            blocks.append(Printed(choices, summary="What sid.sample did"))
        return blocks

    def _elsewhere(self) -> list[Verdict]:
        """Whether the posterior has modes that the draws lack, unless their sampler has looked for some."""
        statistics = self.idata.get("sample_stats") if isinstance(self.idata, xr.DataTree) else None
        if "trusted" in self.idata.attrs or (statistics is not None and "search_evaluations" in statistics.attrs):
            return []
        try:
            check = check_modes(self.idata, model=self.model)
        except (ValueError, TypeError) as error:  # such as a likelihood that is no series, or a variable that is not continuous
            return [Verdict("look", f"Whether the posterior has modes that the draws lack is not known: {error}")]
        return [Verdict(check.level, check.verdict)]

    def _prior(self) -> tuple[xr.DataTree, Diagnostics | None]:
        """Posterior and prior as one result; the user's own is left alone."""
        groups = {"posterior": posterior_of(self.idata)}
        stored = self.idata["prior"] if isinstance(self.idata, xr.DataTree) and "prior" in self.idata.children else None
        if stored is not None and stored.sizes.get("chain", 1) * stored.sizes.get("draw", 0) >= LEAST_PRIOR_DRAWS:
            groups["prior"] = stored.to_dataset()
        else:
            with warnings.catch_warnings(), silent_draws():
                warnings.simplefilter("ignore")  # of potentials, which the report mentions
                drawn = pm.sample_prior_predictive(PRIOR_DRAWS, model=self.model, var_names=self.names, random_seed=0)
            groups["prior"] = drawn["prior"].to_dataset()
        shared = [n for n in self.names if n in groups["prior"]]
        known = diagnose(groups["prior"][shared], shared) if shared else None
        return xr.DataTree.from_dict(groups), known

    def _potentials(self) -> list[Block]:
        names = ", ".join(str(v.name) for v in self.model.potentials)
        return [Paragraph(f"Potentials of the model ({names}) are no part of the priors shown.")] if names else []

    def _attributes(self, posterior: xr.Dataset) -> Block:
        sizes = f"{counted(posterior.sizes['chain'], 'chains')} of {counted(posterior.sizes['draw'], 'draws')}"
        known = {k: posterior.attrs[k] for k in ("inference_library", "inference_library_version") if k in posterior.attrs}
        seconds = posterior.attrs.get("sampling_time")
        made = f" by {' '.join(map(str, known.values()))}" if known else ""
        spent = f" in {float(seconds):.3g} s" if seconds is not None else ""
        return Paragraph(f"{sizes}{made}{spent}.")

    def _fit(self) -> list[Block]:
        blocks: list[Block] = []
        for name, records in self.records.items():
            fitted = predict_fitted(self.idata, model=self.model, name=name, draws=min(self.validation.runs, 50))
            if filter_view(name, self.model).system.driving:
                blocks += self._with_processes(
                    name, [(record, runs) for record, (_, runs) in zip(records, fitted, strict=True)]
                )
                continue
            for r, (record, (_, runs)) in enumerate(zip(records, fitted, strict=True)):
                which = _which("Free run on the record of the fit", r, len(records))
                blocks += self._judged(which, name, record, runs, self._colours(name), self._noise(name, r))
        return blocks

    def _with_processes(self, name: str, fitted: list[tuple[TimeSeries, xr.Dataset]]) -> Iterator[Block]:
        """Fit with the processes inferred, one sample ahead, and without them."""
        ahead = innovations(self.idata, name, model=self.model)["innovation"].to_numpy()
        alone = without_processes(self.idata, model=self.model, name=name)
        unknown, colours = _unknown(name, self.model), self._colours(name)
        yield Paragraph(
            f"With {unknown} inferred from the record: what is drawn here is given all of it, and a process can bring it near "
            "anything that was measured. Predictions one sample ahead know nothing of that sample."
        )
        end = 0
        for r, (record, runs) in enumerate(fitted):
            here, end = slice(end, end + len(record)), end + len(record)
            which, noise = _which("Record of the fit", r, len(fitted)), self._noise(name, r)
            for i, output in enumerate(_outputs(name, self.model)):
                y, scored, middle = self._scored(name, record, runs, i, output)
                if middle is None:
                    yield Paragraph(f"{which}, {output}: no measurement or no finite draw to compare.", "warning")
                    continue
                candidates = middle, record.output_matrix[:, i] - ahead[here, i], alone[r][:, i]
                known = [scored & np.isfinite(c) for c in candidates]
                fits = [float(fit_percent(y[k], c[k])) if k.any() else np.nan for k, c in zip(known, candidates, strict=True)]
                ratio = float(np.sqrt(np.mean(noise.scores(i, y[scored] - middle[scored]) ** 2)))
                error = float(rmse(y[scored], middle[scored]))
                self.verdicts.append(
                    verdicts.inferred(which, output, unknown, ratio, (fits[0], fits[1], fits[2]), colours.get(output, ""))
                )
                score = Score(output, error, self.units.get(output, ""), fits[0], False, unknown)
                self.scores.append(score)
                unit = f" {score.unit}" if score.unit else ""
                yield Paragraph(
                    f"{which}, {output}: RMSE {error:.4g}{unit}, fit {fits[0]:.2f} %; one sample ahead {fits[1]:.2f} %; "
                    f"without {unknown} {fits[2]:.2f} %."
                )
            for output in _outputs(name, self.model):
                caption = f"{which}, {output}: median and 94 % band of draws given the record, without measurement noise"
                yield self._fit_over_time(caption, name, record, runs, output)

    def _scored(
        self, name: str, record: TimeSeries, runs: xr.Dataset, i: int, output: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """An output, which samples of it are compared, and the median of the runs; None if nothing can be compared."""
        y, middle = record.output_matrix[:, i], np.nanmedian(labelled(runs, output).transpose("draw", "time"), axis=0)
        caught = _censored(name, self.model, record)
        scored = np.isfinite(y) & ~caught[:, i] & (record.t >= record.t[0] + self.validation.skip)
        return y, scored, middle if scored.any() and np.isfinite(middle[scored]).all() else None

    def _colours(self, name: str) -> dict[str, str | None]:
        """What shows that innovations of a filter's outputs are no noise; None where there are too few to test."""
        return {o: self._innovation_colour(tested) for o, (_, tested) in self._tested_innovations(name).items()}

    @staticmethod
    def _innovation_colour(tested: Tested) -> str | None:
        return None if isinstance(tested, Paragraph) else verdicts.coloured(tested[0])

    def _tested_innovations(self, name: str) -> dict[str, tuple[np.ndarray, Tested]]:
        """Standardised innovations of each output with their tests."""
        if name not in self._innovations:
            found, records = innovations(self.idata, name, model=self.model)["standardised"].to_numpy(), self.records[name]
            outputs, inputs = enumerate(_outputs(name, self.model)), _inputs(records)
            self._innovations[name] = {o: (found[:, i], _tested(o, found[:, i], inputs)) for i, o in outputs}
        return self._innovations[name]

    def _judged(
        self,
        what: str,
        name: str,
        record: TimeSeries,
        runs: xr.Dataset,
        colours: Mapping[str, str | None],
        noise: Noise,
    ) -> Iterator[Block]:
        """Errors of free runs by output, with their verdicts, and a figure for each.

        ``colours`` says what shows that residuals known beforehand are no noise; what the runs leave is tested here.
        """
        left = {o: tested for o, (_, tested) in self._left(what, name, record, runs, noise).items()}
        coloured = {one.name for one in _coloured(filter_view(name, self.model))}
        for i, output in enumerate(_outputs(name, self.model)):
            y, scored, middle = self._scored(name, record, runs, i, output)
            if middle is None:
                yield Paragraph(f"{what}, {output}: no measurement or no finite run to compare.", "warning")
                continue
            error, fit = rmse(y[scored], middle[scored]), fit_percent(y[scored], middle[scored])
            known, tested = colours.get(output, ""), left.get(output)
            rest = None if tested is None or isinstance(tested, Paragraph) else verdicts.coloured(tested[0])
            rest = known if output in coloured else rest
            colour = known or rest or ("" if known == "" and rest == "" else None)
            ratio = float(np.sqrt(np.mean(noise.scores(i, y[scored] - middle[scored]) ** 2)))  # NaN where no noise is known
            size, unit_noise = (ratio, 1.0) if np.isfinite(ratio) else (float(error), None)
            driven = filter_view(name, self.model).free_diffusion
            self.verdicts.append(verdicts.run(what, output, size, float(fit), unit_noise, colour, driven))
            score = Score(output, float(error), self.units.get(output, ""), float(fit), record in self.validation.all)
            self.scores.append(score)
            unit = f" {score.unit}" if score.unit else ""
            yield Paragraph(f"{what}, {output}: RMSE {score.error:.4g}{unit}, fit {score.fit:.2f} %.")
        for output in _outputs(name, self.model):
            caption = f"{what}, {output}: median and 94 % band of posterior draws, without measurement noise"
            yield self._fit_over_time(caption, name, record, runs, output)

    def _fit_over_time(self, caption: str, name: str, record: TimeSeries, runs: xr.Dataset, output: str) -> Block:
        """A measured output and its runs, which zoom if that is asked for; samples at a limit are not compared."""
        caught = _censored(name, self.model, record)
        if caught[:, _outputs(name, self.model).index(output)].any():
            caption += "; samples at a limit of the sensor are left out"
        record = with_units(_renamed(record.replace(y=np.where(caught, np.nan, record.output_matrix)), runs), self.units)
        still = figure(caption, _fit_figure(record, runs, output), self.units)
        if not self.interactive:
            return still
        return zoomable(caption, partial(fit_over_time, record, runs, output, self.units.get(output, "")), still)

    def _residuals(self) -> list[Block]:
        text = "Standardised one-step-ahead innovations at the posterior mean: white and normal if the model is right."
        if any(np.isfinite(noise.freedom).any() for noise in self.noise.values()):
            text += " Where noise has a t distribution, each is the normal number of the same probability."
        blocks: list[Block] = [Paragraph(text)]
        for name, records in self.records.items():
            freedom = dict(zip(_outputs(name, self.model), self.noise[name].freedom, strict=True))
            inputs = _inputs(records)
            for output, (values, tested) in self._tested_innovations(name).items():
                if isinstance(tested, Paragraph):
                    blocks.append(tested)
                    continue
                tests, lags = tested
                self.verdicts += verdicts.residual(output, tests, freedom[output])
                blocks.append(Listed(f"Innovations of {output}", verdicts.sentences(tests, freedom[output])))
                # Several records follow each other, so that their times would go back.
                time: dict[str, Any] = {"t": records[0].t} if len(records) == 1 else {"fs": None}
                if self.interactive:
                    blocks.append(
                        zoomable(f"Residuals of {output} over time", partial(residuals_over_time, values, time.get("t")))
                    )
                draw = partial(plot_residuals, values, u=with_squares(inputs).get(tests.cross_input or ""), lags=lags, **time)
                blocks.append(figure(f"Residuals of {output}{_beside(inputs, tests)}", draw, self.units))
            if pair := between_outputs({o: values for o, (values, _) in self._tested_innovations(name).items()}):
                self.verdicts += verdicts.common(pair)
        return blocks

    def _integration(self) -> list[Block]:
        blocks: list[Block] = []
        for name, records in self.records.items():
            check: SubstepCheck = check_substeps(self.idata, model=self.model, name=name, data=records)
            self.verdicts.append(Verdict(check.level, check.verdict))  # type: ignore[arg-type]
            blocks.append(Listed(_which_filter("Steps of the solver", name, self.records), _sentences(check)))
            view = filter_view(name, self.model)
            if view.problem.linearises_processes:
                blocks.append(self._linearised("the processes", name, partial(check_processes, random_seed=0)))
            elif linearises_initial_state(view):
                blocks.append(self._linearised("the initial state", name, check_initial_state))
            if view.system.inputs:
                blocks.append(self._between_samples(name, records))
        return blocks

    def _between_samples(self, name: str, records: Sequence[TimeSeries]) -> Block:
        """What the record says of the inputs between its samples."""
        title = _which_filter("Inputs between the samples", name, self.records)
        try:
            check = check_intersample(self.idata, model=self.model, name=name, data=records)
        except ValueError as error:
            self.verdicts.append(Verdict("look", f"What inputs between the samples do is not known: {error}"))
            return Paragraph(f"{title}: {error}", "warning")
        self.verdicts.append(Verdict(check.level, check.verdict))
        return Listed(title, _sentences(check))

    def _linearised(self, about: str, name: str, judge: Callable[..., InitialStateCheck | ProcessCheck]) -> Block:
        """What a linearisation costs."""
        try:
            check = judge(self.idata, model=self.model, name=name)
        except ValueError as error:
            self.verdicts.append(Verdict("look", f"What linearising about {about} costs is not known: {error}"))
            return Paragraph(str(error), "warning")
        # What a sampler has against its draws stands among the verdicts already, and what was measured now stands here. Of
        # several filters it does not say which of them it means.
        if check.level != "bad" or len(self.records) > 1 or not verdicts.told_before(self.idata, check.verdict):
            self.verdicts.append(Verdict(check.level, check.verdict))  # type: ignore[arg-type]
        return Listed(_which_filter(about.removeprefix("the ").capitalize(), name, self.records), _sentences(check))

    def _validation(self) -> list[Block]:
        (name,) = self.records
        how, blocks = self.validation, list[Block]()
        for r, record in enumerate(how.all):
            runs = predict(
                self.idata,
                record.replace(units=None),  # those of a report are labels
                model=self.model,
                name=name,
                draws=how.runs,
                x0=how.x0,
                record=how.record,
                params=how.params,
                random_seed=0,
            )
            which = _which("Free run on a record of validation", r, len(how.all))
            blocks.append(Paragraph(f"{which}: initial state {runs.attrs['x0']}."))
            said, scored = len(self.verdicts), len(self.scores)
            blocks += self._tried(which, name, record, runs)
            if shared := shared_samples(record, self.records[name]):
                known = verdicts.seen(_which("Record of validation", r, len(how.all)), shared, len(record))
                self.verdicts[said:] = [known, *(v for v in self.verdicts[said:] if v.level != "good")]
                del self.scores[scored:]
        return blocks

    def _tried(self, which: str, name: str, record: TimeSeries, runs: xr.Dataset) -> Iterator[Block]:
        """What free runs on a record of validation say."""
        noise = self._noise(name, self.validation.record)
        if filter_view(name, self.model).system.driving:
            yield from self._spread(which, name, record, runs, noise)
            self.verdicts += verdicts.coverage(self.records[name], record)
            return
        coloured = {one.name for one in _coloured(filter_view(name, self.model))}
        colours = {o: None if o in coloured else "" for o in _outputs(name, self.model)}
        yield from self._judged(which, name, record, runs, colours, noise)
        self.verdicts += verdicts.coverage(self.records[name], record)
        yield from self._left_over(which, name, record, runs, noise)

    def _spread(self, what: str, name: str, record: TimeSeries, runs: xr.Dataset, noise: Noise) -> Iterator[Block]:
        """Whether free runs on drawn processes are as far from a new record as these let them be."""
        unknown, rng, sensors = (
            _unknown(name, self.model),
            np.random.default_rng(0),
            filter_view(name, self.model).problem.form.sensors,
        )
        coloured = {one.name for one in _coloured(filter_view(name, self.model))}
        yield Paragraph(f"{what}: of {unknown} nothing is known there; each run has a path drawn from its prior.")
        outputs = _outputs(name, self.model)
        drawn = np.stack([labelled(runs, o).transpose("draw", "time").to_numpy() for o in outputs], axis=-1)
        drawn = drawn[np.isfinite(drawn).all(axis=(1, 2))]
        measured = sensors.clipped(drawn + noise.drawn(drawn.shape, rng)) if len(drawn) else drawn
        for i, output in enumerate(outputs):
            y, scored, middle = self._scored(name, record, runs, i, output)
            if middle is None or not len(drawn):
                yield Paragraph(f"{what}, {output}: no measurement or no finite run to compare.", "warning")
                continue
            error, fit = float(rmse(y[scored], middle[scored])), float(fit_percent(y[scored], middle[scored]))
            seen = np.isfinite(y) & (record.t >= record.t[0] + self.validation.skip)  # those at a limit, too: so are the runs
            kept, enough = measured[:, seen, i], len(drawn) >= 1 / verdicts.UNLIKE
            rank = distance_rank(y[seen], kept, 1e-3 * float(noise.std[i])) if enough and output not in coloured else None
            low, high = np.quantile(kept, [0.05, 0.95], axis=0)
            inside = 100 * float(np.mean((y[seen] >= low) & (y[seen] <= high)))
            states = filter_view(name, self.model).system.states
            known = set(self.validation.start_of(states)) >= set(states)
            self.verdicts.append(verdicts.spread(what, output, unknown, fit, inside, rank, known or self.validation.skip > 0))
            score = Score(output, error, self.units.get(output, ""), fit, True, unknown)
            self.scores.append(score)
            unit = f" {score.unit}" if score.unit else ""
            yield Paragraph(f"{what}, {output}: RMSE {error:.4g}{unit}, fit {fit:.2f} %; {inside:.0f} % in the 90 % band.")
        for output in outputs:
            caption = f"{what}, {output}: median and 94 % band of runs with {unknown} drawn from the prior"
            yield self._fit_over_time(caption, name, record, runs, output)

    def _left_over(self, what: str, name: str, record: TimeSeries, runs: xr.Dataset, noise: Noise) -> Iterator[Block]:
        """Whether what free runs leave of a record is noise."""
        kept = record.t >= record.t[0] + self.validation.skip
        inputs = _inputs([record], kept)
        for output, (left, tested) in self._left(what, name, record, runs, noise).items():
            if tested is None:
                continue
            if isinstance(tested, Paragraph):
                yield tested
                continue
            tests, lags = tested
            self.verdicts.append(verdicts.left_over(what, output, tests))
            freedom = noise.freedom[_outputs(name, self.model).index(output)]
            yield Listed(f"{what}: what it leaves of {output}, in units of the noise", verdicts.sentences(tests, freedom))
            if self.interactive:
                yield zoomable(f"{what}: what it leaves of {output}", partial(residuals_over_time, left, record.t[kept]))
            draw = partial(
                plot_residuals, left, u=with_squares(inputs).get(tests.cross_input or ""), lags=lags, t=record.t[kept]
            )
            title = f"{what}: what it leaves of {output}, in units of the noise{_beside(inputs, tests)}"
            yield figure(title, draw, self.units)

    def _left(
        self, what: str, name: str, record: TimeSeries, runs: xr.Dataset, noise: Noise
    ) -> dict[str, tuple[np.ndarray, Tested | None]]:
        """What the median of free runs leaves of each output, in units of the noise, with its tests.

        Samples at a limit are missing. What is left of an output with coloured noise is not white, and has no tests.
        """
        kept = record.t >= record.t[0] + self.validation.skip
        inputs = _inputs([record], kept)
        coloured = {one.name for one in _coloured(filter_view(name, self.model))}
        seen = np.where(_censored(name, self.model, record), np.nan, record.output_matrix)
        found: dict[str, tuple[np.ndarray, Tested | None]] = {}
        for i, output in enumerate(_outputs(name, self.model)):
            middle = np.median(labelled(runs, output).transpose("draw", "time"), axis=0)
            if np.isfinite(middle).all():
                left = noise.scores(i, seen[:, i] - middle)[kept]
                tested = None if output in coloured else _tested(f"{what}, {output}", left, inputs)
                if isinstance(tested, tuple):
                    # Parameters that are not known exactly leave an offset, which the spread of the runs says.
                    means = labelled(runs, output).transpose("draw", "time").to_numpy()[:, kept & np.isfinite(seen[:, i])]
                    unsure = float(np.nanstd(means.mean(axis=1)) / noise.std[i])
                    tests, lags = tested
                    tested = replace(tests, mean_se=float(np.hypot(tests.mean_se, unsure))), lags
                found[output] = left, tested
        return found


def _inputs(records: Sequence[TimeSeries], kept: np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
    """Inputs (T,) by name, of records one after the other."""
    matrix = np.concatenate([r.input_matrix[kept] for r in records])
    return {name: matrix[:, j] for j, name in enumerate(records[0].inputs)}


def _beside(inputs: Mapping[str, np.ndarray], tests: ResidualTests) -> str:
    """Which of several inputs, or the square of one, residuals are drawn beside: that which they follow most."""
    told = len(inputs) > 1 or tests.cross_input not in inputs
    return f", beside the input {tests.cross_input}" if told and tests.cross_input else ""


def _tested(what: str, residuals: np.ndarray, inputs: Mapping[str, np.ndarray]) -> Tested:
    """Tests of residuals and the number of lags to draw, or why there are none."""
    count = int(np.isfinite(residuals).sum())
    if count < 40:
        return Paragraph(f"{what}: {count} residuals are too few to test.", "warning")
    lags = min(50, count // 4)
    found = input_tests(residuals, with_squares(inputs), min(25, lags))
    if not verdicts.follows(found):  # squares are shown where they tell something
        found = input_tests(residuals, inputs, min(25, lags))
    return found, lags


def _outputs(name: str, model: pm.Model) -> tuple[str, ...]:
    return filter_view(name, model).system.outputs


def _unknown(name: str, model: pm.Model) -> str:
    """Inputs and drifts that are processes, in words."""
    driving = filter_view(name, model).system.driving
    parts = [one.name if one.role == "input" else f"the drift of {one.name}" for one in driving]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _coloured(view: FilterView) -> list[Any]:
    """Processes that are noise of an output."""
    return [one for one in view.system.latents if one.role == "noise"]


def _censored(name: str, model: pm.Model, record: TimeSeries) -> np.ndarray:
    """Which samples (T, n_y) are at a limit."""
    return filter_view(name, model).problem.form.sensors.censored(record.output_matrix)


def _renamed(record: TimeSeries, runs: xr.Dataset) -> TimeSeries:
    """Record whose outputs have the names of the system."""
    names = labels(runs)[: record.output_matrix.shape[1]]
    return record.replace(outputs=names)


def with_units(record: TimeSeries, units: Mapping[str, str]) -> TimeSeries:
    """Record with the units of a report, which may have been given to that alone."""
    return record.replace(units={name: units[name] for name in (*record.inputs, *record.outputs) if name in units})


def _fit_figure(record: TimeSeries, runs: xr.Dataset, output: str) -> Callable[[], Any]:
    """The whole record, and its last tenth enlarged."""
    zoom = (float(record.t[-1] - 0.1 * (record.t[-1] - record.t[0])), float(record.t[-1])) if len(record) > 100 else None
    return partial(plot_fit, record, runs, output=output, zoom=zoom, figsize=(9.5, 4.2))


def _which(what: str, r: int, count: int) -> str:
    return f"{what} {r + 1}" if count > 1 else what


def _which_filter(what: str, name: str, filters: Mapping[str, Any]) -> str:
    return f"{what}, {name}" if len(filters) > 1 else what


def _sentences(check: Any) -> list[str]:
    """What a check prints, a sentence a line."""
    lines = [line.strip() for line in str(check).splitlines()]
    return [f"{line[0].upper()}{line[1:].removesuffix('.')}." for line in lines if line]


def _prior_text(rv: Any) -> str:
    text = str(rv.str_repr()).partition("~")[2].strip()
    return f"{text}, each" if rv.ndim else text
