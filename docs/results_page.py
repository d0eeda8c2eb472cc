"""The page of results: tables from the files that full runs of examples and benchmarks have saved, none of them by hand."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Published numbers, as printed: minimum, mean and maximum over particles of Longbottom, Champneys and Rogers (2024).
SILVERBOX_PAPER = (1.057, 1.825, 2.952)  # mV
EMPS_PAPER = (0.295, 0.520, 0.899)  # mm

INTRODUCTION = """# Results

Every number on this page was read from a file when the page was built: from `examples/results/`, which the full runs of the
[examples](examples.md) write, and from `benchmarks/results/`, which the benchmarks write. Rows marked *published* contain
the numbers of the papers. The pages of the [case studies](case_studies.md) discuss the numbers. RMSE is the root-mean-square
error, and MSE the mean squared error.
"""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Table in Markdown: the first column to the left, numbers to the right."""
    lines = [columns, [":--", *["--:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def number(value: float | None, digits: int = 3) -> str:
    """Digits that count; nothing for what was not measured."""
    if value is None:
        return ""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < 1e9 else text


def triple(values: Sequence[float], scale: float = 1.0, decimals: int = 3) -> str:
    """Minimum / mean / maximum."""
    return " / ".join(f"{scale * v:.{decimals}f}" for v in values)


def best(values: Mapping[str, float], name: str, text: str) -> str:
    """Text, bold for the smallest value."""
    return f"**{text}**" if values[name] == min(values.values()) else text


def silverbox(found: Mapping[str, Any]) -> str:
    """Free runs on the arrow head."""
    runs = {
        "EK1(5) x4, IBIS": "ibis",
        "EK1(5) x4, NUTS": "nuts",
        "settings of the paper: EK0(2) x1, first-order form": "paper settings",
    }
    rows = [["*published* (EK0, IBIS)", triple(SILVERBOX_PAPER)], *([name, triple(found[key])] for name, key in runs.items())]
    structures = found["structures"]
    evidence = {name: -row["log evidence"] for name, row in structures.items()}
    second = [
        [name, best(evidence, name, f"{row['log evidence']:.1f} ± {row['error']:.1f}"), triple(row["rmse"])]
        for name, row in structures.items()
    ]
    third = [[name, f"{row['rmse']:.3f}", f"{row['log posterior']:.1f}"] for name, row in found["choices"].items()]
    return (
        "Root-mean-square error of the free run on the arrow head, mV: minimum / mean / maximum over particles.\n\n"
        + table(["posterior", "RMSE (mV)"], rows)
        + "\nComparison of model structures by the evidence on the training record alone:\n\n"
        + table(["Duffing with", "log evidence", "RMSE (mV)"], second)
        + "\nThe effect of each choice, at the posterior mode:\n\n"
        + table(["likelihood and input between samples", "RMSE (mV)", "log posterior at the mode"], third)
    )


def bouc_wen(found: Mapping[str, Any]) -> str:
    """Free runs on the two tests, and the parameters."""
    records = ("sine sweep", "multisine")

    def row(name: str, errors: Mapping[str, Sequence[float]]) -> list[str]:
        return [name, *(triple(errors[record], 1e6) for record in records)]

    rows = [row("*published*", found["paper"])]
    for label, title in {"paper's settings": "EK0(2), first-order form, one step", "this": "EK1(3), chains, two steps"}.items():
        rows += [row(f"{title}, noise {seed}", study["rmse"]) for seed, study in found[label].items()]
        rows.append(row(f"{title}, mean", found[f"{label}, mean"]))
    rows.append(["true parameters", *(f"{1e6 * found['truth'][record][1]:.3f}" for record in records)])
    studies = found["this"]
    names = list(next(iter(studies.values()))["parameters"])
    second = []
    for name in names:
        cells = [study["parameters"][name] for study in studies.values()]
        marks = ["" if cell["inside"] else " (out)" for cell in cells]
        spans = [
            f"{cell['interval'][0]:.5g} .. {cell['interval'][1]:.5g}{mark}" for cell, mark in zip(cells, marks, strict=True)
        ]
        second.append([name.replace("_", " "), f"{cells[0]['truth']:g}", *spans])
    return (
        "Free runs of all particles, RMSE of the displacement in µm: minimum / mean / maximum.\n\n"
        + table(["", *records], rows)
        + "\n95 % intervals, in SI units:\n\n"
        + table(["", "truth", *(f"noise {seed}" for seed in studies)], second)
    )


def emps(found: Mapping[str, Any]) -> str:
    """Open and closed loop."""
    labels = ("open loop, train", "open loop, test", "closed loop, train", "closed loop, test")
    rows = [
        ["*published*, test", triple(EMPS_PAPER, decimals=4)],
        *([name, triple(found[name], decimals=4)] for name in labels),
    ]
    units = {"M": "kg", "Fv": "N s/m", "Fc": "N", "offset": "N", "noise": "m", "disturbance": "N"}
    second = [[f"{name} ({units[name]})", f"{row['mean']:.5g}", f"{row['sd']:.2g}"] for name, row in found["posterior"].items()]
    third = [[name, *(f"{v:.2f}" for v in row[:2]), *(f"{v:.5f}" for v in row[2:])] for name, row in found["choices"].items()]
    return (
        "RMSE of the particles in mm: minimum / mean / maximum.\n\n"
        + table(["", "RMSE (mm)"], rows)
        + f"\nLog evidence of the two chains: {', '.join(f'{e:,.1f}' for e in found['log evidence'])}; "
        + f"{found['seconds']:.0f} s. The posterior:\n\n"
        + table(["", "mean", "sd"], second)
        + "\nThe effect of the choices, RMSE in mm at the posterior mode:\n\n"
        + table(["", "open, train", "open, test", "closed, train", "closed, test"], third)
    )


def friction(found: Mapping[str, Any]) -> str:
    """Criteria for each truth and model."""
    rows = []
    for truth, study in found.items():
        models = study["table"]
        criteria = {
            **{name: {model: row[name] for model, row in models.items()} for name in ("DIC", "WAIC", "LOO", "MSE")},
            "evidence": {model: -row["log_evidence"] for model, row in models.items()},
        }
        for model, row in models.items():
            cells = [best(criteria[name], model, f"{row[name]:.1f}") for name in ("DIC", "WAIC", "LOO")]
            cells.append(best(criteria["evidence"], model, f"{row['log_evidence']:.1f} ± {row['log_evidence_se']:.1f}"))
            cells.append(best(criteria["MSE"], model, f"{1e6 * row['MSE']:.4f}"))
            rows.append([truth, model, *cells])
    return (
        "Deviances (lower is better), log evidence, and error of prediction on 59 s of another excitation, for each true law. "
        "The best value is bold. The [page of the study](friction.md) marks where the DIC gives a warning.\n\n"
        + table(["truth", "model", "DIC", "WAIC", "LOO", "log evidence", "MSE (mm²)"], rows)
    )


def piecewise(found: Mapping[str, Any]) -> str:
    """Probabilities by ABC, evidence by likelihood."""
    titles = {
        "stiffness": "trilinear spring, prior of the paper",
        "visited": "trilinear spring, breakpoints within the range of the motion",
        "damping": "trilinear damper",
        "cubic": "cubic spring, no noise",
        "absorber": "shock absorber (static)",
        "mr": "magnetorheological damper without current",
        "friction": "friction damper",
    }
    names = ("linear", "bilinear", "trilinear", "quadlinear")
    rows = []
    for key in (key for key in titles if key in found):
        study = found[key]
        cost = f"{study['seconds']:.0f} s, {study['simulations']:,} simulations"
        rows.append([titles[key], "ABC probability", *(f"{p:.2f}" for p in study["probability"]), cost])
        rows.append(["", "fraction of particles", *(f"{p:.2f}" for p in study["share"]), ""])
        if study["likelihood"]:
            likelihood = [study["likelihood"][name] for name in names]
            now = all("doubt" in r for r in likelihood)  # by the last stage's proposals; products of mean weights before
            doubts = [" (in doubt)" if r.get("doubt") else "" for r in likelihood]
            cells = [f"{r['log evidence']:.1f} ± {number(r['error'], 2)}{d}" for r, d in zip(likelihood, doubts, strict=True)]
            spent = f"{sum(r['seconds'] for r in likelihood):.0f} s, {sum(r['runs'] for r in likelihood):,.0f} runs"
            rows.append(["", "log evidence" if now else "log evidence, of an earlier version", *cells, spent])
    missing = [title for key, title in titles.items() if key not in found]
    note = f"\nNot in the saved file: {'; '.join(missing)}.\n" if missing else ""
    return (
        "Number of linear regions, by approximate Bayesian computation (ABC) and by likelihood.\n\n"
        + table(["record", "", *names, "cost"], rows)
        + note
    )


def beam(found: Mapping[str, Any]) -> str:
    """Evidence of laws and places of a nonlinearity."""
    models = found["models"]
    top = models[found["best"]]["log_evidence"]
    rows = []
    for label, row in sorted(models.items(), key=lambda item: -item[1]["log_posterior"]):
        law = []
        for name in (n for n in found["truth"] if f"{n}_x" in row["mode"]):
            value = row["mode"][f"{name}_x"]
            law.append(f"{name} = {number(value)} ± {number(value * row['std_log'][f'{name}_x_log__'][0], 2)}")
        evidence, mark = row["log_evidence"], " (doubtful)" if row["doubts"] else ""
        cells = [f"{evidence:.1f}{mark}", f"{top - evidence:.1f}"]
        if label in found["evidence unknown"]:
            cells = ["unknown", "far" if label in found["and far below"] else "unknown"]
        rows.append([label, *cells, "; ".join(law), f"{row['seconds']:.0f}"])
    truth = ", ".join(f"{name} = {number(value)}" for name, value in found["truth"].items())
    errors = "; ".join(f"{name} {number(value)} %" for name, value in found["free_run_nmse"].items())
    return (
        f"A simulated beam with a cubic spring and a stop at node 12 ({truth}); the models have half of its modes. Evidence is "
        "that of the Laplace approximation, doubtful where `find_mode` warned of higher points or of its steps. "
        f"Normalised mean square error of free runs at the tip: {errors}.\n\n"
        + table(["model", "log evidence", "below the best", "law at the mode (N/m³, N/m, m)", "seconds"], rows)
    )


def f16(found: Mapping[str, Any]) -> str:
    """Evidence of the laws of a joint, and errors of free runs beside the linear floor."""
    levels = list(found["floor"])
    cells = {law: [triple(row["errors"][level]["relative"], 1.0, 3) for level in levels] for law, row in found["laws"].items()}
    top = found["laws"][found["best"]]["evidence"]["log_evidence"]
    rows = []
    for law, row in found["laws"].items():
        evidence = row["evidence"]
        rows.append([law, *cells[law], f"{top - evidence['log_evidence']:,.0f}", f"{row['seconds']:.0f}"])
    rows.append(["linear floor", *[triple(found["floor"][level], 1.0, 3) for level in levels], "", ""])
    rows.append(["period to period", *[triple(found["noise"][level], 1.0, 3) for level in levels], "", ""])
    squares = [[law, *[triple(row["errors"][level]["rmse"], 1.0, 3) for level in levels]] for law, row in found["laws"].items()]
    names = [f"level {level}" for level in levels]
    return (
        "Free runs of the whole test records; error over root mean square of acc1 / acc2 / acc3. The linear floor is the "
        "frequency response of the level before; *period to period* is what the steady periods differ from their mean, which "
        "no function of the force can simulate. Evidence by Schwarz's criterion on the training levels, with white noise, so "
        "that its differences are too large; seconds of the processor.\n\n"
        + table(["law of the joint", *names, "log evidence below the best", "seconds of the fit"], rows)
        + "\nRoot mean square error (m/s²), after the first 50 samples:\n\n"
        + table(["law of the joint", *names], squares)
    )


def pem(found: Mapping[str, Any]) -> str:
    """Prediction-error fits of the measured records."""
    rows = [
        [f"Silverbox, {name}", number(row.get("train")), number(row["arrow"]), "mV", number(row.get("seconds"), 2)]
        for name, row in found.get("silverbox", {}).items()
    ]
    for part, name in {"test_sinesweep": "sine sweep", "test_multisine": "multisine"}.items():
        if part in found.get("bouc_wen", {}):
            took = number(found["bouc_wen"]["seconds"], 2)
            rows.append([f"Bouc-Wen, {name}", "", number(1e6 * found["bouc_wen"][part]), "µm", took])
    for name, (train, test) in found.get("emps", {}).items():
        rows.append([f"EMPS, {name}", number(train), number(test), "mm", ""])
    return "RMSE of free runs after a fit, and time of the fit in seconds.\n\n" + table(
        ["", "training", "test", "unit", "seconds"], rows
    )


def pem_benchmark(found: Mapping[str, Any]) -> str:
    """Fits beside archimedes."""
    rows = [
        [name, row["iterations"], number(row["seconds"]), number(row.get("ratio")), number(row.get("apart"), 2)]
        for name, row in found["duffing"].items()
    ]
    columns = ["Duffing, T = 3072, four parameters", "iterations", "seconds", "time ratio", "difference of the optima"]
    return f"Comparison with archimedes {found['archimedes']}, after compilation.\n\n" + table(columns, rows)


#: Sections of ``benchmarks/pem_spread.py`` with a row for each kind of fit.
SPREADS = {
    "spread": "quickstart",
    "prior": "short records",
    "sign": "nearly even sensor",
    "weak": "weak records",
    "equal": "equal optima and bent valleys",
    "rugged": "many optima",
    "proportional": "noise of 10 % of the reading",
    "linearised": "Van der Pol oscillator with process noise",
    "between": "Duffing oscillator",
    "sensors": "sensor with a fault",
    "terms": "equations that lack",
    "networks": "several outputs",
    "actuators": "inputs that are not what acts",
}


def pem_spread(found: Mapping[str, Any]) -> str:
    """Fits of simulated records that can be believed, or not."""
    rows = [
        [
            f"{kind}, {name}",
            row["records"],
            row["confidently wrong"],
            row["said that it is not sure"],
            " to ".join(f"{value:.2f}" for value in (min(row["spread"]), max(row["spread"]))) if "spread" in row else "",
        ]
        for section, kind in SPREADS.items()
        for name, row in found.get(section, {}).items()
    ]
    columns = ["fits", "records", "confidently wrong", "said to be unsure", "spread of errors over standard errors"]
    drift = [
        [
            name,
            row["records"],
            row["confidently wrong"],
            row["said that innovations are coloured"],
            ", ".join(f"{value:.2f}" for value in row["spread"]),
            f"{100 * row['path in its band']:.1f} %" if "path in its band" in row else "",
        ]
        for name, row in found.get("drift", {}).items()
    ]
    head = [
        "stiffness that drifts",
        "records",
        "confidently wrong",
        "said that innovations are coloured",
        "spread",
        "path in its 90 % band",
    ]
    more = "\n\nRecords of an oscillator whose stiffness walks, fitted with the walk and with a constant:\n\n" + table(
        head, drift
    )
    return "The spread is that of each parameter: smallest to largest.\n\n" + table(columns, rows) + (more if drift else "")


def annealing(found: Mapping[str, Any]) -> str:
    """Data Annealing with adapted proposals, and in the form of the paper."""
    columns = [
        "friction study",
        "effective draws of c",
        "of Fc",
        "largest R-hat",
        "accepted",
        "evaluations",
        "chains that said so",
    ]
    rows = [
        [
            name,
            number(row["ess"]["c"]),
            number(row["ess"]["Fc"]),
            f"{max(row['r_hat'].values()):.3f}",
            f"{row['accepted']:.2f}",
            number(row["evaluations"]),
            f"{len(row['said'])} of {row['chains']}",
        ]
        for name, row in found["friction"].items()
    ]
    return table(columns, rows)


def starts(found: Mapping[str, Any]) -> str:
    """Share of searches for the mode that end in the best one."""
    rows = [
        [f"{problem.replace('_', ' ')}, {name}", f"{row['right']:.2f}", f"{row['modes']:.1f}", number(row["evaluations"])]
        for problem, values in found.items()
        for name, row in values["rows"].items()
    ]
    return table(["searches", "share in the best mode", "modes found", "evaluations"], rows)


def problems(found: Mapping[str, Any]) -> str:
    """Posteriors with known answers: right, or said so, or confidently wrong."""
    rows = [
        [
            f"{problem.replace('_', ' ')}, `{method}`",
            len(runs),
            sum(r["right"] for r in runs),
            sum(r["right"] and r["said"] for r in runs),
            sum(not r["right"] and r["said"] for r in runs),
            sum(not r["right"] and not r["said"] for r in runs),
            number(sorted(r["seconds"] for r in runs)[len(runs) // 2]),
            number(statistics.median([r["processor"] for r in runs if "processor" in r] or [None])),
        ]
        for problem, methods in found.items()
        for method, runs in methods.items()
    ]
    columns = [
        "problem, method",
        "runs",
        "right",
        "of these in doubt",
        "wrong and said so",
        "confidently wrong",
        "seconds (median)",
        "processor seconds (median)",
    ]
    return table(columns, rows)


def references(found: Mapping[str, Any]) -> str:
    """Posteriors of the problems without an exact answer: two methods, and how far they are apart."""
    rows = [
        [
            problem.replace("_", " "),
            f"{row['log_evidence']:.3f} ± {row['error']:.3f}",
            number(row["ess"]),
            f"{row['pareto_k']:.2f}",
            number(row["chains_ess"]),
            f"{row['chains_rhat']:.3f}",
            f"{row['mean_apart']:.2f}",
            f"{100 * row['sd_apart']:.0f} %",
        ]
        for problem, row in found.items()
    ]
    columns = [
        "problem",
        "log evidence",
        "effective weighted draws",
        "Pareto k",
        "effective draws of the chains",
        "R-hat",
        "means apart (sd)",
        "sds apart",
    ]
    return table(columns, rows)


def missed_modes(found: Mapping[str, Any]) -> str:
    """What the check of modes says of right draws, and of chains that stay in one mode."""
    rows = []
    for name, runs in found.items():
        every = [run for kind in runs.values() for run in kind]
        right = [run for run in every if not run["wrong"] and not run["says"]]
        silent = [run for run in runs["nuts"] if run["wrong"] and not run["says"]]
        rows.append(
            [
                name.replace("_", " "),
                len(right),
                sum(run["level"] == "bad" for run in right),
                sum(run["level"] == "look" for run in right),
                f"{len(silent)} of {len(runs['nuts'])}",
                sum(run["level"] == "bad" for run in silent),
                f"{max(run['seconds'] for run in every):.1f}",
            ]
        )
    columns = [
        "problem", "right draws", "called a problem", "worth a look", "NUTS from the mode wrong, and silent",
        "of these called a problem", "processor seconds at most",
    ]  # fmt: skip
    return table(columns, rows)


def evidence(found: Mapping[str, Any]) -> str:
    """Log evidence over seeds beside an independent number."""
    rows = []
    for case, values in found.items():
        name, samples, chains = [*case.split(":"), "1"][:3]
        known, runs = values["reference"], values["runs"]
        away = [r["log_evidence"] - known["log_evidence"] for r in runs]
        right = [abs(a) < 4 * (r["error"] ** 2 + known["error"] ** 2) ** 0.5 + 0.05 for a, r in zip(away, runs, strict=True)]
        said = [bool(r["doubt"]) for r in runs]
        wrong = [s for ok, s in zip(right, said, strict=True) if not ok]
        rows.append(
            [
                f"{name}, {int(samples):,} samples, {chains} chain{'s' * (chains != '1')}",
                f"{known['log_evidence']:.3f} ± {known['error']:.3f}",
                len(runs),
                sum(right),
                sum(ok and s for ok, s in zip(right, said, strict=True)),
                sum(wrong),
                len(wrong) - sum(wrong),
                f"{min(away):+.2f} .. {max(away):+.2f}",
                number(sorted(r["error"] for r in runs)[len(runs) // 2], 1),
            ]
        )
    judged = ["right", "of these in doubt", "wrong and said so", "confidently wrong"]
    columns = ["map", "log evidence", "runs", *judged, "errors", "stated error (median)"]
    return (
        "Piecewise-linear maps of a shock absorber (`mr_`: of a measured magnetorheological damper) by `sample_ibis` with 1000 "
        "particles a chain, beside an independent number. "
        "Right is a log evidence within four of its errors and 0.05.\n\n" + table(columns, rows)
    )


def likelihood(found: Mapping[str, Any]) -> str:
    """One likelihood and its gradient."""
    rows = [[name, number(value)] for name, value in found.items() if not isinstance(value, Mapping)]
    growth = [
        [f"{row['T']:,}", number(row["seconds"]), number(row["gradient_MiB"])]
        for row in found.values()
        if isinstance(row, dict)
    ]
    return (
        "Duffing oscillator, T = 3072, EK1 of order 4, two substeps per sample, eight unknowns.\n\n"
        + table(["", "measured"], rows)
        + "\nValue and gradient of longer records:\n\n"
        + table(["samples", "seconds", "memory added (MiB)"], growth)
    )


def batch(found: Mapping[str, Any]) -> str:
    """A particle-step, and other packages."""
    keys = {
        "single": "single",
        "batch x1": "1 thread",
        "batch x2": "2 threads",
        "ratio": "single / batch",
        "scaling": "scaling",
    }
    steps = [[name, *(number(row.get(key)) for key in keys)] for name, row in found["steps"].items()]
    columns = {
        "state error": "state error",
        "value ms": "value, ms",
        "value+gradient ms": "value and gradient, ms",
        "batch 1000 us": "batch, µs",
    }
    peers = [[name, *(number(row.get(key)) for key in columns)] for name, row in found["peers"].items()]
    growth = [[f"{row['T']:,}", number(row["seconds"])] for row in found["growth"]["T"]]
    return (
        "Time of one substep of the filter for one particle, with its share of the measurement update, in ns; 256 particles, "
        "T = 3072.\n\n"
        + table(["", *keys.values()], steps)
        + "\nComparison with other packages: Duffing, T = 3072, a batch of 1000 particles on both cores, µs per particle.\n\n"
        + table(["", *columns.values()], peers)
        + "\nLog-likelihood sums of 64 particles for longer records:\n\n"
        + table(["samples", "seconds"], growth)
    )


def ibis(found: Mapping[str, Any]) -> str:
    """Samplers on the Silverbox."""
    rows = [
        [name, number(row["seconds"], 2), f"{row['evaluations']:,.0f}", f"{row['log evidence']:.1f}", triple(row["rmse mV"])]
        for name, row in found.items()
    ]
    columns = ["", "seconds", "evaluations", "log evidence", "arrow head (mV)"]
    return "The Silverbox posterior with wide priors and 1000 particles, after compilation.\n\n" + table(columns, rows)


def effective_draws(found: Mapping[str, Any]) -> str:
    """Effective draws that runs state, beside those by which the means of forty runs scatter."""
    rows = []
    for problem, row in found.items():
        ratios = [a / b for a, b in zip(row["stated"], row["by scatter"], strict=True)]
        each = [", ".join(f"{v:.0f}" for v in row[key]) for key in ("stated", "by scatter")]
        rows.append([problem.replace("_", " "), *each, f"{min(ratios):.2f} to {max(ratios):.2f}"])
    return table(["problem", "stated (median), by unknown", "by the scatter of means", "ratio"], rows)


def simulator(found: Mapping[str, Any]) -> str:
    """Simulations for ABC."""
    rows = [[name, number(value)] for name, value in found.items() if name != "difference"]
    return "Simulations with their distance to the record, µs per particle.\n\n" + table(["", "µs"], rows)


def coverage(found: Mapping[str, Any]) -> str:
    """Coverage of intervals over many simulated fits."""
    rows = []
    for name, run in found.items():
        fits = [name, run["fits"], run["failed"], number(run["seconds a fit"])]
        for parameter, row in run["parameters"].items():
            inside = [sum(abs(p - 0.5) < level / 2 for p in row["pit"]) / len(row["pit"]) for level in (0.5, 0.9)]
            spread = (sum(z**2 for z in row["z"]) / len(row["z"])) ** 0.5
            rows.append([*fits, parameter.replace("_", " "), f"{spread:.2f}", *(f"{100 * part:.0f} %" for part in inside)])
            fits = ["", "", "", ""]
    columns = ["model:method", "fits", "failed", "seconds per fit", "quantity", "rms of z", "in 50 %", "in 90 %"]
    return (
        "Fits of records that were simulated with parameters from the prior. z is the error in posterior standard deviations. "
        "The last columns show how often the central 50 % and 90 % intervals contain the true value.\n\n" + table(columns, rows)
    )


def step_study(found: Mapping[str, Any]) -> str:
    """Bias, coverage and width by solver and step."""
    rows, tables = found["rows"], []
    for kind, title in (("bl", "smooth"), ("foh", "linear between the samples"), ("zoh", "held, with jumps")):
        some = [r for r in rows if r["input"] == kind]
        steps = sorted({r["substeps"] for r in some})
        lines = []
        for rate in sorted({r["rate"] for r in some}):
            for solver in dict.fromkeys(r["solver"] for r in some):
                cells = {r["substeps"]: r for r in some if (r["rate"], r["solver"]) == (rate, solver)}
                chosen = next(iter(cells.values()))["chosen"]
                lines.append([f"{solver}, {rate} per period", *(_step_cell(cells[s]) for s in steps), str(chosen)])
        exact = {r["rate"]: r["exact"] for r in some}
        lines += [
            [f"*exact*, {rate} per period", *[f"{e['bias']:.2f} / {100 * e['coverage']:.0f} % / 1.00"] * len(steps), ""]
            for rate, e in exact.items()
        ]
        columns = ["", *(f"{s} substep{'s' * (s > 1)}" for s in steps), "auto"]
        tables.append(f"Input {title}:\n\n" + table(columns, lines))
    return (
        f"Fits of {found['records']} records each: bias of the means in posterior standard deviations / coverage of 90 % "
        'intervals / width relative to that of the exact likelihood. The choice of `substeps="auto"` is bold.\n\n'
        + "\n".join(tables)
    )


def _step_cell(row: Mapping[str, Any]) -> str:
    if "bias" not in row:
        return "no fit"
    text = f"{row['bias']:.2f} / {100 * row['coverage']:.0f} % / {row['width']:.2f}"
    return f"**{text}**" if row["auto"] else text


def load(found: Mapping[str, Any]) -> str:
    """Seconds and memory of large problems."""
    large = [
        [name, number(row.get("seconds")), number(row.get("gradient_s")), f"{row['peak_MiB']:,.0f}"]
        for name, row in found.items()
        if "fits" not in row
    ]
    again = [
        [
            name,
            row["fits"],
            f"{row['MiB'][0]:,.0f}",
            f"{row['MiB'][-1]:,.0f}",
            f"{row['growth_%']:+.1f} %",
            f"{row['MiB_a_fit']:.2f}",
        ]
        for name, row in found.items()
        if "fits" in row
    ]
    text = "Log-likelihood and gradient, in seconds after compilation, and the peak memory of the process.\n\n"
    text += table(["", "value, s", "gradient, s", "MiB"], large)
    if again:
        text += "\nMemory during repeated fits in one process; the growth is that over the second half.\n\n"
        text += table(["", "fits", "first, MiB", "last, MiB", "growth", "MiB a fit"], again)
    return text


#: Title, script, file of its results, the page that discusses them, and what makes tables of them.
def compilation(found: Mapping[str, Any]) -> str:
    """Seconds of a changed equation."""
    titles = {
        "imports": "Imports in fresh processes, medians, and as multiples of `import pymc` in the same round",
        "session": "A session: simulate, fit, sample",
        "added": "To the first number of a model of five variables, with and without the filter",
        "priors": "To the mode of one system (200 prior draws, 4 searches), by priors that are written in several ways",
        "masses": "Three masses in a row, EK1(3) with a dense covariance",
        "ten masses": "Ten masses in a row, EK1(3) with a dense covariance",
        "fifty masses": "Fifty masses in a row, EK1(3) with a block of the covariance for each mass",
        "diffrax": "The session's model in diffrax, JAX and NumPyro",
    }
    text = (
        "Seconds by the clock, and of the processor in parentheses: with no compiled code, with another equation, and with the "
        "same equation in a new process.\n"
    )
    for case, rows in found.items():
        steps = next(iter(rows.values()))
        digits = 2 if case == "imports" else 1
        cells = {step: [f"{row[step][0]:.{digits}f} ({row[step][1]:.{digits}f})" for row in rows.values()] for step in steps}
        lines = [[step, *cells[step]] for step in steps]
        text += f"\n{titles[case]}:\n\n" + table(["", *rows], lines)
    return text


def growth(found: Mapping[str, Any]) -> str:
    """Compile time, time of a step and memory by the number of coordinates."""
    text = ""
    for covariance, rows in found.items():
        columns = list(next(iter(rows.values())))
        lines = [[n, *(number(row[c]) for c in columns)] for n, row in rows.items()]
        text += f"\nEK1(3), {covariance} covariance (seconds; microseconds of a step and of LAPACK's QR; MiB):\n\n"
        text += table(["coordinates", *columns], lines)
    return text


def masses(found: Mapping[str, Any]) -> str:
    """Posteriors of rows of masses by NUTS, and what blocks of the covariance cost."""
    columns = {
        "seconds": "seconds", "processor seconds": "processor seconds", "ms a gradient": "ms a gradient",
        "gradients of the draws": "gradients of the draws", "effective draws": "effective draws", "R-hat": "R-hat",
    }  # fmt: skip
    names = {"three": "three masses, dense", "three in blocks": "three, in blocks", "hundred": "a hundred, in blocks"}
    runs = {names[key]: found[key] for key in names if key in found}
    rows = [[name, *(number(run[c], 4) for c in columns)] for name, run in runs.items()]
    inside = "; ".join(
        f"{name}: " + ", ".join(f"{p} {share:.2f}" for p, share in run["probability below the truth"].items())
        for name, run in runs.items()
    )
    text = (
        "NUTS in a fresh process with nothing compiled, four chains on two cores; seconds contain the search for the mode and "
        "compilation. The machine had other work: processor time counts all processes.\n\n"
        + table(["", *columns.values()], rows)
        + f"\nShare of the posterior below the truth. {inside}.\n"
    )
    for name, run in runs.items():
        text += f"\nVerdict on {name}: {run['verdict']}\n"
    if "blocks" in found:
        kinds = ("log-likelihood", "shift", "sd ratio, least", "sd ratio, largest")
        text += (
            "\nError of the log-likelihood at the exact mode (nats), shift of the mode in posterior standard deviations (the "
            "largest of all unknowns), and ratios of the standard deviations, against white noise around accurate runs:\n\n"
            + table(["", *kinds], [[case, *(number(row[k]) for k in kinds)] for case, row in found["blocks"].items()])
        )
    return text


def specimens(found: Mapping[str, Any]) -> str:
    """Errors of an isolator that was hardly measured, by how the others were pooled."""
    rows = []
    for key, score in found["scores"].items():
        how, seen = key.split(", ", 1)
        fit = found["models"][key]
        cells = [
            f"{score['error_percent']:.1f}",
            f"{100 * score['inside_90']:.0f} %",
            f"{fit['ess']:.0f}",
            f"{fit['r_hat']:.3f}",
        ]
        rows.append([f"{how} pooling", seen, *cells, f"{fit['seconds']:.0f}"])
    loo = "; ".join(
        f"{key.split(',')[0]} pooling {row['elpd']:.0f} (Pareto k up to {row['pareto_k']:.1f}, too large for {row['doubted']})"
        for key, row in found["models"].items()
        if "elpd" in row
    )
    return (
        f"{found['specimens']} simulated isolators and one more. Error: of the median of free runs over a record of three "
        "seconds, in per cent of its root mean square; beside it the share of its samples in the 90 % band of the runs. "
        f"Leaving out one specimen by importance sampling, its own parameters (if it has any) integrated out: {loo}.\n\n"
        + table(["model", "of the last isolator", "error (%)", "in the band", "ESS", "R-hat", "seconds"], rows)
    )


def specimens_benchmark(found: Mapping[str, Any]) -> str:
    """One filter of several specimens beside several filters."""
    rows = [[k, *(number(found[k][c]) for c in ("together", "apart", "ratio"))] for k in ("value", "gradient")]
    compiled = found["compile"]
    rows.append(["compilation (s)", number(compiled["together"]), number(compiled["all apart"]), ""])
    return (
        f"{found['specimens']} specimens, {found['samples']} samples; processor time in milliseconds, and seconds of "
        "compilation (of the twelve filters, the later ones find the kernel of the first).\n\n"
        + table(["", "one filter", "twelve filters", "ratio"], rows)
    )


def stiff(found: Mapping[str, Any]) -> str:
    """Errors, steps and seconds of stiff systems."""

    def lines(columns: Mapping[str, str], named: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
        return [[name, *(number(row.get(key)) for key in columns)] for name, row in named.items()]

    problems = {name: row for name, row in found.items() if name != "not stiff"}
    errors = {"states": "states", "steps": "steps", "loglik": "log-likelihood", "gradient": "gradient", "filter steps": "steps"}
    times = {"value": "value", "gradient s": "gradient", "batch": "batch of 256", "BDF": "SciPy BDF", "Radau": "SciPy Radau"}
    smooth = {"auto": 'method="auto"', "rk4": 'method="rk4"'}
    return (
        "Errors of free runs (relative to the largest value of each state) and of the filter near the mode (nats; gradient in "
        "posterior standard deviations), against Radau's method at 1e-10, with the steps taken. Nothing stands where "
        "the filter is not meant for the system.\n\n"
        + table(["", *errors.values()], lines(errors, problems))
        + "\nSeconds, once compiled, of the filter, and of one solution by SciPy at 1e-6:\n\n"
        + table(["", *times.values()], lines(times, {name: row for name, row in problems.items() if "value" in row}))
        + "\nSystems that are not stiff, seconds of a free run of 1024 samples; the runs are the same to the last bit:\n\n"
        + table(["", *smooth.values()], lines(smooth, {n: row for n, row in found["not stiff"].items() if row["identical"]}))
    )


def stiff_posteriors(found: Mapping[str, Any]) -> str:
    """Posteriors of stiff systems against the truth."""
    rows = []
    for name, runs in found.items():
        trusted = [run for run in runs if run["trusted"]]
        wrong = sum(run["probability"] < 1e-4 for run in trusted)
        seconds = statistics.median(run["seconds"] for run in runs)
        rows.append(
            [name, len(runs), len(trusted), wrong, number(max(abs(z) for run in runs for z in run["z"])), number(seconds)]
        )
    columns = ["", "seeds", "trusted", "confidently wrong", "largest distance (sd)", "median seconds"]
    return "Posteriors by `sample` from log-normal priors with a spread of a factor of e.\n\n" + table(columns, rows)


def latent(found: Mapping[str, Any]) -> str:
    """Coverage of an unrecorded force, and of parameters with and without it."""
    force, rows = found["force"], []
    for kind, inside in found["parameters"].items():
        bias = found["bias"][kind]
        lost = found["failed" if kind == "with" else "failed without"]
        rows.append([f"{kind} the force", *(f"{100 * inside[p]:.0f} % ({bias[p]:+.1f})" for p in inside), lost])
    text = (
        f"{found['records']} records of a Duffing oscillator with a force that was not recorded: "
        f"{100 * force['coverage']:.1f} % of its samples are in the 90 % band, whose centre is off by "
        f"{100 * force['error']:.0f} % of the force's standard deviation. "
        "Records whose parameters are in their 90 % intervals, and in brackets the mean error in standard deviations:\n\n"
    )
    return text + table(["model", *next(iter(found["parameters"].values())), "records without a mode"], rows)


def tank_inflow(found: Mapping[str, Any]) -> str:
    """What an inflow that nobody recorded explains, and what it does to free runs."""
    rows = [
        [
            law if where == "no inflow" else "",
            where if one["success"] else f"{where} (no optimum found)",
            f"{one['log-likelihood']:.0f}",
            f"{one['training']:.3f}",
            f"{one['test']:.3f}",
            f"{100 * one['coverage']:.0f} %",
            f"{one['half width']:.2f}",
        ]
        for law, by_place in found.items()
        for where, one in by_place.items()
    ]
    header = ["law", "inflow", "log-likelihood", "training (V)", "test (V)", "in the 90 % band", "half of its width (V)"]
    return table(header, rows)


def tank_learned(found: Mapping[str, Any]) -> str:
    """Outflows that are learned, beside orifices."""
    laws = found["laws"]
    best = max(one["evidence"] for one in laws.values())
    rows = [
        [
            law,
            f"{one['evidence'] - best:.1f}",
            f"{one['proposals that count']:.0f}",
            f"{one['training']:.3f}",
            f"{one['test']:.3f}",
            f"{100 * one['coverage']:.0f} %",
            f"{one['half width']:.2f}",
        ]
        for law, one in laws.items()
    ]
    header = [
        "law", "log evidence below the best (Laplace)", "proposals that count, of 8000", "training (V)", "test (V)",
        "in the 90 % interval", "half of its width (V)",
    ]  # fmt: skip
    return f"Each error is counted once of {found['counted']:.1f} times.\n\n" + table(header, rows)


def emps_forces(found: Mapping[str, Any]) -> str:
    """Whether both records of EMPS agree on the parameters, and how far runs are from them."""
    rows = []
    for kind, both in found.items():
        apart = [number(both["apart"][name]) if name in both["apart"] else "" for name in ("M", "Fv", "Fc", "offset")]
        gain = both["training"]["log_posterior"] - found["white disturbance"]["training"]["log_posterior"]
        rows.append([kind, f"{gain:+.0f}", *apart, *map(number, both["errors"].values())])
    header = ["model", "log posterior", "M", "Fv", "Fc", "offset", *(k for k in next(iter(found.values()))["errors"])]
    text = (
        "EMPS with processes. Differences of the parameters between a fit to the training record and one to the test record, "
        "in standard deviations; errors of runs with those of the training record, in mm:\n\n"
    )
    return text + table(header, rows)


def noise(found: Mapping[str, Any]) -> str:
    """References and coverage of noise that is not Gaussian."""
    coloured, limits, outliers = (found[f"{name}_reference"] for name in ("coloured", "limits", "outliers"))
    exact = [
        [
            "coloured", "the Gaussian of all samples together", coloured["records"], number(coloured["shift"]),
            number(coloured["largest_shift"]), f"{coloured['sd_ratio']:.4f}",
        ],
        [
            "limits", "probability of all censored samples together", limits["records"], number(limits["shift"]),
            number(limits["largest_shift"]), f"{limits['sd_ratio']:.4f}",
        ],
        [
            "outliers", "Gibbs sampler over the scales", outliers["records"], number(outliers["shift"]),
            number(outliers["largest_shift"]), f"{outliers['sd_ratio']:.4f}",
        ],
    ]  # fmt: skip
    text = (
        "Mean of the rate against an exact reference, in posterior standard deviations (root mean square, largest), and the "
        "ratio of the standard deviations:\n\n"
    )
    columns = ["noise", "reference", "records", "error of the mean", "largest", "sd"]
    rows = [
        [kind, what, *(f"{100 * f[q]['coverage']:.0f} % ({f[q]['bias']:+.2f})" if q in f else "" for q in ("rate", "noise"))]
        for kind, models in found["coverage"].items()
        for what, f in models.items()
    ]
    more = (
        f"\n\n{found['records']} records of each kind: how many have the truth in the 90 % interval, and in brackets the mean "
        "error in standard deviations. Spikes are twenty times as large, one sample in twenty.\n\n"
    )
    return text + table(columns, exact) + more + table(["record", "model", "rate", "noise"], rows)


def boards(found: Mapping[str, Any]) -> str:
    """Rows of the public boards, and what each ingredient brought."""
    rows, tables = [], []
    for name, board in found.items():
        for row in board["rows"]:
            inside = "" if row["coverage"] is None else f"{100 * row['coverage']:.1f} %"
            figures = [number(row[key]) for key in ("best", "rmse")]
            test = f"{row['test']} ({row['window']})"
            rows.append([name, test, row["unit"], *figures, inside, number(row["width"]), number(row["seconds"])])
        if not board["structures"]:
            continue
        tests = list(next(iter(board["structures"].values()))["errors"])
        covers, lines = any(row.get("coverage") for row in board["structures"].values()), []
        for structure, row in board["structures"].items():
            chosen = f"**{structure}**" if structure == board["chosen"] else structure
            chosen += " [search failed]" if row["beaten by"] else ""
            errors = [number(row["errors"][t]) for t in tests]
            inside = [f"{100 * row['coverage'][t]:.0f} %" if t in row["coverage"] else "" for t in tests if covers]
            lines.append([chosen, row["unknowns"], number(row["training"]), f"{row['evidence']:.0f}", *errors, *inside])
        unit = board["rows"][0]["unit"]
        inside = [f"{t}, in the 90 % interval" for t in tests if covers]
        header = ["structure", "unknowns", "training", "evidence", *tests, *inside]
        tables.append(
            f"\n{name}, RMSE in {unit}; evidence less that of the best, each error counted once (the criterion counts it "
            f"{board['counted']:.1f} times otherwise); the structure that was chosen is bold; [search failed]: a structure "
            "that it contains has a smaller error in training:\n\n" + table(header, lines)
        )
    columns = ["board", "test (window)", "unit", "best known", "here", "in the 90 % interval", "half its width", "seconds"]
    return "".join(["Tests by the official splits and metric.\n\n", table(columns, rows), *tables])


def filters(found: Mapping[str, Any]) -> str:
    """Three packages' filters on one record."""
    columns = {
        "version": "version", "value ms": "value (ms)", "value and gradient ms": "and gradient (ms)",
        "batch us": "batch (us a particle)", "first call, value s": "first value (s)",
        "first call, gradient s": "first gradient (s)",
        "error, 2 steps": "2 steps", "error, 4 steps": "4 steps", "error, 16 steps": "16 steps",
    }  # fmt: skip
    rows = [
        [name, *(row.get(k, "") if k == "version" else number(row.get(k)) for k in columns)]
        for name, row in found.items()
        if "missing" not in row
    ]
    return (
        "Times of one evaluation, of one with its gradient, and in a batch of 256; seconds of the first calls; and the "
        "log-likelihood less that around an accurate solution, with two, four and sixteen steps a sample.\n\n"
        + table(["", *columns.values()], rows)
    )


def jax_devices(found: Mapping[str, Any]) -> str:
    """A batch of log-densities by numba and by JAX, on the processor and on a GPU."""
    names = {"numba": f"numba, {found['cores']} cores"} | {name: f"{name} ({kind})" for name, kind in found["devices"].items()}
    rows = [
        ["value and gradient" if row["gradient"] else "value", row["size"]]
        + [number(row[name]) if name in row else "" for name in names]
        + [number(max(v for k, v in row.items() if k.endswith("difference"))) if len(row) > 3 else ""]
        for row in found["batches"]
    ]
    return (
        "Duffing oscillator, 400 samples, EK1(4), one step a sample: microseconds a point, and the largest relative difference "
        "from the values of numba; empty: not run, or the memory did not suffice.\n\n"
        + table(["", "points", *names.values(), "difference"], rows)
    )


def relations(found: Mapping[str, Any]) -> str:
    """The filter with and without relations, at the same steps."""
    rows = []
    for name, measured in found.items():
        without, kept = ({row["substeps"]: row for row in measured if row["relations"] == related} for related in (False, True))
        for steps, row in without.items():
            pairs = [(row[key], kept[steps][key]) for key in ("error", "deviations", "loglik")]
            rows.append([name, steps, *(f"{number(a, 2)} / {number(b, 2)}" for a, b in pairs)])
    return (
        "Without / with the relations: root-mean-square error of the states over the record, without data, in units of their "
        "size; the same in standard deviations that the filter says; error of the log-likelihood of a record with noise of one "
        "percent (nats).\n\n" + table(["system, relations", "steps a sample", "error", "standard deviations", "nats"], rows)
    )


def wrong_starts(found: Mapping[str, Any]) -> str:
    """Searches from draws of the prior, by likelihood and by way."""
    ways, rows = ("plain", "free diffusion, 1e3", "free diffusion, 1e8", "tempered"), []
    for name, problem in found.items():
        for key, row in problem.items():
            if not isinstance(row, Mapping) or "ways" not in row:
                continue
            likelihood, steps = key.split(", ")
            error = row["log posterior at the mode of fine steps"] - problem["log posterior, 32 steps"][likelihood]
            cells = [f"{row['ways'][w]['right']:.2f} ({row['ways'][w]['evaluations']:.0f})" for w in ways]
            rows.append(
                [name.replace("_", " "), likelihood, steps, f"{error:.4f}" if abs(error) < 1e6 else "beyond 1e6", *cells]
            )
    starts = next(iter(found.values()))["starts"]
    return (
        f"Share of {starts} searches from draws of the prior, the same in all rows of a problem, that end in the best mode, "
        "and evaluations a search (with gradient); error of the log posterior at the mode by the steps.\n\n"
        + table(["problem", "likelihood", "a sample", "error of the steps", *ways], rows)
    )


def end_to_end(found: Mapping[str, Any]) -> str:
    """From a prior to draws, by several packages."""
    columns = {
        "seconds": "seconds", "effective draws": "effective draws", "R-hat": "R-hat",
        "seconds to 1000": "seconds to 1000", "off": "mean off by (sd)",
    }  # fmt: skip
    rows = [
        [
            task.replace("_", " "),
            name,
            *([number(row.get(k), 4) for k in columns] if "mean" in row else [row["says"], "", "", "", ""]),
        ]
        for task, methods in found.items()
        for name, row in methods.items()
    ]
    return (
        "Four chains of 1000 draws in a fresh process, with compilation. Effective draws are the smallest number "
        "of all unknowns, in bulk or tails. Means are compared with Stan's table, and on the Silverbox with those of the first "
        "row.\n\n" + table(["task", "", *columns.values()], rows)
    )


SECTIONS: tuple[tuple[str, str, str, str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("Silverbox", "examples/silverbox.py", "examples/results/silverbox.json", "silverbox.md", silverbox),
    ("Bouc-Wen", "examples/bouc_wen.py", "examples/results/bouc_wen.json", "bouc_wen.md", bouc_wen),
    ("EMPS", "examples/emps.py", "examples/results/emps.json", "emps.md", emps),
    ("Friction", "examples/friction_models.py", "examples/results/friction_models.json", "friction.md", friction),
    ("Piecewise-linear", "examples/piecewise_linear.py", "examples/results/piecewise_linear.json", "piecewise.md", piecewise),
    ("Beam", "examples/beam.py", "examples/results/beam.json", "how_to/structures.md", beam),
    ("F-16", "examples/f16.py", "examples/results/f16.json", "how_to/structures.md", f16),
    ("Specimens", "examples/specimens.py", "examples/results/specimens.json", "how_to/specimens.md", specimens),
    (
        "Benchmark: specimens",
        "benchmarks/specimens.py",
        "benchmarks/results/specimens.json",
        "how_to/specimens.md",
        specimens_benchmark,
    ),
    ("Prediction errors", "examples/pem.py", "examples/results/pem.json", "pem.md", pem),
    ("Benchmark: prediction errors", "benchmarks/pem.py", "benchmarks/results/pem.json", "pem.md", pem_benchmark),
    ("Benchmark: spread of fits", "benchmarks/pem_spread.py", "benchmarks/results/pem_spread.json", "pem.md", pem_spread),
    (
        "Benchmark: problems with known answers",
        "benchmarks/problems.py",
        "benchmarks/results/problems.json",
        "problems.md",
        problems,
    ),
    (
        "Benchmark: references of the problems",
        "benchmarks/references.py",
        "benchmarks/results/references.json",
        "problems.md",
        references,
    ),
    (
        "Benchmark: modes that draws lack",
        "benchmarks/missed_modes.py",
        "benchmarks/results/missed_modes.json",
        "problems.md",
        missed_modes,
    ),
    ("Benchmark: evidence", "benchmarks/evidence.py", "benchmarks/results/evidence.json", "problems.md", evidence),
    ("Benchmark: Data Annealing", "benchmarks/annealing.py", "benchmarks/results/annealing.json", "friction.md", annealing),
    (
        "Benchmark: unrecorded forces of EMPS",
        "benchmarks/emps_forces.py",
        "benchmarks/results/emps_forces.json",
        "boards.md",
        emps_forces,
    ),
    ("Benchmark: search for modes", "benchmarks/starts.py", "benchmarks/results/starts.json", "how_to/start_nuts.md", starts),
    ("Benchmark: one likelihood", "benchmarks/likelihood.py", "benchmarks/results/likelihood.json", "design.md", likelihood),
    ("Benchmark: many particles", "benchmarks/batch.py", "benchmarks/results/batch.json", "speed.md", batch),
    ("Benchmark: samplers", "benchmarks/ibis.py", "benchmarks/results/ibis.json", "speed.md", ibis),
    (
        "Benchmark: effective draws",
        "benchmarks/ibis.py",
        "benchmarks/results/effective_draws.json",
        "problems.md",
        effective_draws,
    ),
    (
        "Benchmark: calibration",
        "benchmarks/calibration.py",
        "benchmarks/results/calibration.json",
        "calibration.md",
        coverage,
    ),
    (
        "Benchmark: step study",
        "benchmarks/step_study.py",
        "benchmarks/results/step_study.json",
        "step_study.md",
        step_study,
    ),
    (
        "Benchmark: from a prior to draws",
        "benchmarks/end_to_end.py",
        "benchmarks/results/end_to_end.json",
        "coming_from/index.md",
        end_to_end,
    ),
    (
        "Benchmark: JAX on a processor and on a GPU",
        "benchmarks/jax_devices.py",
        "benchmarks/results/jax_devices.json",
        "how_to/jax.md",
        jax_devices,
    ),
    ("Benchmark: filters of three packages", "benchmarks/filters.py", "benchmarks/results/filters.json", "speed.md", filters),
    ("Benchmark: noise", "benchmarks/noise.py", "benchmarks/results/noise.json", "how_to/outputs_and_noise.md", noise),
    (
        "Benchmark: wrong starts",
        "benchmarks/wrong_starts.py",
        "benchmarks/results/wrong_starts.json",
        "how_to/likelihoods.md",
        wrong_starts,
    ),
    (
        "Benchmark: exact relations",
        "benchmarks/relations.py",
        "benchmarks/results/relations.json",
        "how_to/relations.md",
        relations,
    ),
    ("Benchmark: unknown forces", "benchmarks/latent.py", "benchmarks/results/latent.json", "how_to/unknown_forces.md", latent),
    ("Benchmark: many coordinates", "benchmarks/growth.py", "benchmarks/results/growth.json", "speed.md", growth),
    ("Benchmark: masses in a row", "benchmarks/masses.py", "benchmarks/results/masses.json", "how_to/structures.md", masses),
    ("Benchmark: a changed equation", "benchmarks/compile.py", "benchmarks/results/compile.json", "speed.md", compilation),
    ("Benchmark: large problems", "benchmarks/load.py", "benchmarks/results/load.json", "speed.md", load),
    ("Benchmark: stiff systems", "benchmarks/stiff.py", "benchmarks/results/stiff.json", "how_to/stiff.md", stiff),
    (
        "Benchmark: posteriors of stiff systems",
        "benchmarks/stiff_posteriors.py",
        "benchmarks/results/stiff_posteriors.json",
        "how_to/stiff.md",
        stiff_posteriors,
    ),
    ("Benchmark: public boards", "benchmarks/boards.py", "benchmarks/results/boards.json", "boards.md", boards),
    (
        "Benchmark: tanks with an unknown inflow",
        "benchmarks/tank_inflow.py",
        "benchmarks/results/tank_inflow.json",
        "boards.md",
        tank_inflow,
    ),
    (
        "Benchmark: tanks with learned outflows",
        "benchmarks/tank_learned.py",
        "benchmarks/results/tank_learned.json",
        "boards.md",
        tank_learned,
    ),
    ("Benchmark: simulations", "benchmarks/simulator.py", "benchmarks/results/simulator.json", "piecewise.md", simulator),
)


def results_page(root: Path) -> str:
    """Page in Markdown, from the files below the repository's root."""
    page = [INTRODUCTION]
    for title, script, file, discussion, tables in SECTIONS:
        # A script among the examples has a page of its own.
        source = f"[`{script}`]({script})" if script.startswith("examples") else f"`{script}`"
        page.append(f"## {title}\n\nBy {source}, discussed in [{discussion.removesuffix('.md')}]({discussion}).\n")
        page.append(tables(json.loads((root / file).read_text())))
    return "\n".join(page)
