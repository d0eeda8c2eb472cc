"""Sections of a report on one model: equations, parameters, diagnostics, fit, residuals, integration, validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.innovations import innovations
from pm_sysid.likelihood import ODEFilterRV, filter_variable
from pm_sysid.metrics import fit_percent, rmse
from pm_sysid.moments import correlation, posterior_of
from pm_sysid.pages import verdicts as judge
from pm_sysid.pages.html import equation, figure, table
from pm_sysid.pages.verdicts import Diagnostics, Verdict
from pm_sysid.prediction import Source, predict, predict_fitted
from pm_sysid.residuals import residual_tests
from pm_sysid.substep_check import SubstepCheck, check_substeps
from pm_sysid.timeseries import BETWEEN_SAMPLES, TimeSeries

#: Draws from the prior, where the result has none.
PRIOR_DRAWS = 1000


@dataclass
class Study:
    """A model, its posterior and its records; each section adds to the verdicts."""

    model: pm.Model
    idata: Any
    records: Mapping[str, list[TimeSeries]]  # by filter
    validation: Sequence[TimeSeries] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    runs: int = 100
    x0: Any = None
    skip: float = 0.0
    verdicts: list[Verdict] = field(default_factory=list)

    def sections(self) -> Iterator[tuple[str, Callable[[], list[str]]]]:
        """Titles of all sections and what makes their HTML, in the order of a reader's questions."""
        yield "Equations", self._equations
        yield "Parameters", self._parameters
        yield "Fit", self._fit
        yield "Residuals", self._residuals
        yield "Integration", self._integration
        if self.validation:
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
    def noise(self) -> dict[str, np.ndarray]:
        """Noise standard deviation of each output of each filter, averaged over the posterior."""
        found = {}
        for name in self.records:
            source = Source(self.idata, self.model, name)
            places = np.linspace(0, source.total - 1, min(50, source.total)).round().astype(int)
            found[name] = source.values([source.rv.owner.inputs[4]], places)[0].mean(axis=0)
        return found

    def _equations(self) -> list[str]:
        html = []
        for name in self.records:
            op: ODEFilterRV = filter_variable(name, self.model)[0]
            form, problem = op.problem.form, op.problem
            html += [equation(line) for line in problem.system.equations]
            solver = f"EK{1 if form.linearisation else 0} of order {form.order}"
            diffusion = "quasi-maximum-likelihood" if problem.calibrated else "dynamic" if form.dynamic else "fixed or free"
            steps = f"{op.substeps} filter step{'s' * (op.substeps > 1)}"
            html.append(
                f"<p>Solved by a probabilistic filter, {solver}, {diffusion} diffusion, {steps} a sample; "
                f"the input is {BETWEEN_SAMPLES[self.records[name][0].intersample]} between samples. "
                f"Measured as <i>{escape(', '.join(problem.system.outputs))}</i> in the variable <i>{escape(name)}</i>.</p>"
            )
            source = "\n".join(problem.system.equations)
            html.append(f"<details><summary>LaTeX</summary><pre>{escape(source)}</pre></details>")
        return html

    def _parameters(self) -> list[str]:
        posterior = posterior_of(self.idata)
        found = judge.diagnose(posterior, self.names)
        priors = {str(v.name): _prior_text(v) for v in self.model.free_RVs}
        with_prior, known = self._prior()
        header = ["", "unit", "prior", "94 % of prior", "mean", "sd", "94 % of posterior", "R-hat", "ESS bulk", "ESS tail"]
        html = [table(header, judge.parameter_rows(found, priors, known, self.units), texts=(1, 2))]
        related = correlation(self.idata, var_names=self.names).to_numpy() if len(found.names) > 1 else np.ones((1, 1))
        self.verdicts += judge.sampling(self.idata, found)
        self.verdicts += judge.information(found, known, related)
        html.append(self._potentials())
        from pm_sysid import plot_correlation, plot_prior_posterior  # figures stand above all else

        densities = partial(plot_prior_posterior, with_prior, var_names=self.names)
        html.append(figure("Densities of the posterior and, where it fits in, of the prior", densities, self.units))
        if len(found.names) > 1:
            correlations = partial(plot_correlation, posterior, var_names=self.names)
            html.append(figure("Posterior correlation", correlations, self.units))
        return [*html, self._attributes(posterior)]

    def _prior(self) -> tuple[xr.DataTree, Diagnostics | None]:
        """Posterior and prior as one result; the user's own is left alone."""
        groups = {"posterior": posterior_of(self.idata)}
        if isinstance(self.idata, xr.DataTree) and "prior" in self.idata.children:
            groups["prior"] = self.idata["prior"].to_dataset()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of potentials, which the page mentions
                drawn = pm.sample_prior_predictive(PRIOR_DRAWS, model=self.model, var_names=self.names, random_seed=0)
            groups["prior"] = drawn["prior"].to_dataset()
        shared = [n for n in self.names if n in groups["prior"]]
        known = judge.diagnose(groups["prior"][shared], shared) if shared else None
        return xr.DataTree.from_dict(groups), known

    def _potentials(self) -> str:
        names = ", ".join(str(v.name) for v in self.model.potentials)
        return f"<p>Potentials of the model ({escape(names)}) are no part of the priors shown.</p>" if names else ""

    def _attributes(self, posterior: xr.Dataset) -> str:
        sizes = f"{posterior.sizes['chain']} chains of {posterior.sizes['draw']} draws"
        known = {k: posterior.attrs[k] for k in ("inference_library", "inference_library_version") if k in posterior.attrs}
        seconds = posterior.attrs.get("sampling_time")
        made = f" by {' '.join(map(str, known.values()))}" if known else ""
        spent = f" in {float(seconds):.3g} s" if seconds is not None else ""
        return f"<p>{sizes}{escape(made)}{spent}.</p>"

    def _fit(self) -> list[str]:
        html: list[str] = []
        for name, records in self.records.items():
            fitted = predict_fitted(self.idata, model=self.model, name=name, draws=min(self.runs, 50))
            for r, (record, (_, runs)) in enumerate(zip(records, fitted, strict=True)):
                which = _which("Free run on the record of the fit", r, len(records))
                html += self._judged(which, name, record, runs)
                for output in _outputs(name, self.model):
                    caption = f"{which}, {output}: median and 94 % band of posterior draws, without measurement noise"
                    html.append(figure(caption, _fit_figure(_renamed(record, runs), runs, output), self.units))
        return html

    def _judged(self, what: str, name: str, record: TimeSeries, runs: xr.Dataset) -> Iterator[str]:
        """Add verdicts on free runs, by output."""
        for i, output in enumerate(_outputs(name, self.model)):
            y, middle = record.output_matrix[:, i], np.nanmedian(runs[output].transpose("draw", "time"), axis=0)
            scored = np.isfinite(y) & (record.t >= record.t[0] + self.skip)
            if not scored.any() or not np.isfinite(middle[scored]).all():
                yield f'<p class="warning">{escape(what)}, {escape(output)}: no measurement or no finite run to compare.</p>'
                continue
            error, fit = rmse(y[scored], middle[scored]), fit_percent(y[scored], middle[scored])
            self.verdicts.append(judge.run(what, output, float(error), float(fit), float(self.noise[name][i])))
            unit = f" {self.units[output]}" if output in self.units else ""
            yield f"<p>{escape(what)}, {escape(output)}: RMSE {float(error):.4g}{escape(unit)}, fit {float(fit):.2f} %.</p>"

    def _residuals(self) -> list[str]:
        from pm_sysid import plot_residuals

        html = ["<p>Standardised one-step-ahead innovations at the posterior mean: white and normal if the model is right.</p>"]
        for name, records in self.records.items():
            found = innovations(self.idata, name, model=self.model)["standardised"].to_numpy()
            u = np.concatenate([r.input_matrix[:, 0] for r in records]) if records[0].inputs else None
            for i, output in enumerate(_outputs(name, self.model)):
                count = int(np.isfinite(found[:, i]).sum())
                if count < 40:
                    html.append(f'<p class="warning">{escape(output)}: {count} residuals are too few to test.</p>')
                    continue
                lags = min(50, count // 4)
                tests = residual_tests(found[:, i], u, lags=min(25, lags))
                self.verdicts += judge.residual(output, tests)
                html.append(f"<pre>{escape(output)}: {escape(str(tests))}</pre>")
                options: dict[str, Any] = {"u": u, "lags": lags}
                # Several records follow each other, so that their times would go back.
                options |= {"t": records[0].t} if len(records) == 1 else {"fs": None}
                html.append(figure(f"Residuals of {output}", partial(plot_residuals, found[:, i], **options), self.units))
        return html

    def _integration(self) -> list[str]:
        html = []
        for name, records in self.records.items():
            check: SubstepCheck = check_substeps(self.idata, model=self.model, name=name, data=records)
            self.verdicts.append(Verdict(check.level, check.verdict))  # type: ignore[arg-type]
            html.append(f"<pre>{escape(str(check))}</pre>")
        return html

    def _validation(self) -> list[str]:
        (name,) = self.records
        html: list[str] = []
        for r, record in enumerate(self.validation):
            runs = predict(self.idata, record, model=self.model, name=name, draws=self.runs, x0=self.x0)
            which = _which("Free run on a record of validation", r, len(self.validation))
            html += self._judged(which, name, record, runs)
            self.verdicts += judge.coverage(self.records[name], record)
            for output in _outputs(name, self.model):
                caption = f"{which}, {output}: median and 94 % band of posterior draws, without measurement noise"
                html.append(figure(caption, _fit_figure(_renamed(record, runs), runs, output), self.units))
            html += self._left_over(which, name, record, runs)
        return html

    def _left_over(self, what: str, name: str, record: TimeSeries, runs: xr.Dataset) -> Iterator[str]:
        """Whether what free runs leave of a record is noise."""
        from pm_sysid import plot_residuals

        kept = record.t >= record.t[0] + self.skip
        u = record.input_matrix[kept, 0] if record.inputs else None
        for i, output in enumerate(_outputs(name, self.model)):
            middle = np.median(runs[output].transpose("draw", "time"), axis=0)
            left = ((record.output_matrix[:, i] - middle) / self.noise[name][i])[kept]
            count = int(np.isfinite(left).sum())
            if not np.isfinite(middle).all():
                continue  # said above
            if count < 40:
                yield f'<p class="warning">{escape(what)}, {escape(output)}: {count} residuals are too few to test.</p>'
                continue
            lags = min(50, count // 4)
            tests = residual_tests(left, u, lags=min(25, lags))
            self.verdicts.append(judge.left_over(what, output, tests))
            yield f"<pre>{escape(what)}, what it leaves of {escape(output)}, in units of the noise: {escape(str(tests))}</pre>"
            draw = partial(plot_residuals, left, u=u, lags=lags, t=record.t[kept])
            yield figure(f"{what}: what it leaves of {output}, in units of the noise", draw, self.units)


def _outputs(name: str, model: pm.Model) -> tuple[str, ...]:
    outputs: tuple[str, ...] = filter_variable(name, model)[0].problem.system.outputs
    return outputs


def _renamed(record: TimeSeries, runs: xr.Dataset) -> TimeSeries:
    """Record whose outputs have the names of the system."""
    names = [str(v) for v in runs.data_vars][: record.output_matrix.shape[1]]
    return record.replace(outputs=names)


def _fit_figure(record: TimeSeries, runs: xr.Dataset, output: str) -> Callable[[], Any]:
    """The whole record, and its last tenth enlarged."""
    from pm_sysid import plot_fit

    zoom = (float(record.t[-1] - 0.1 * (record.t[-1] - record.t[0])), float(record.t[-1])) if len(record) > 100 else None
    return partial(plot_fit, record, runs, output=output, zoom=zoom, figsize=(9.5, 4.2))


def _which(what: str, r: int, count: int) -> str:
    return f"{what} {r + 1}" if count > 1 else what


def _prior_text(rv: Any) -> str:
    text = str(rv.str_repr()).partition("~")[2].strip()
    return f"{text}, each" if rv.ndim else text
