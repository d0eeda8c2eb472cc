"""The page of results: tables from the files that full runs of examples and benchmarks have saved, none of them by hand."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Published numbers, as printed: minimum, mean and maximum over particles of Longbottom, Champneys and Rogers (2024).
SILVERBOX_PAPER = (1.057, 1.825, 2.952)  # mV
EMPS_PAPER = (0.295, 0.520, 0.899)  # mm

INTRODUCTION = """# Results

Every number on this page was read from a file when the page was built: from `examples/results/`, which the full runs of the
[examples](examples.md) write, and from `benchmarks/results/`, which the benchmarks write. Rows that say *published* are
those of the papers. What the numbers mean is on the pages of the [case studies](case_studies.md).
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
        "EK1(4) x2, IBIS": "ibis",
        "EK1(4) x2, NUTS": "nuts",
        "the paper's settings: EK0(2) x1, first-order form": "paper settings",
    }
    rows = [["*published* (EK0, IBIS)", triple(SILVERBOX_PAPER)], *([name, triple(found[key])] for name, key in runs.items())]
    structures = found["structures"]
    evidence = {name: -row["log evidence"] for name, row in structures.items()}
    second = [
        [name, best(evidence, name, f"{row['log evidence']:.1f} ± {row['error']:.1f}"), triple(row["rmse"])]
        for name, row in structures.items()
    ]
    third = [[name, f"{value:.3f}"] for name, value in found["choices"].items()]
    return (
        "Root mean square error of the free run on the arrow head, mV: minimum / mean / maximum over particles.\n\n"
        + table(["posterior", "RMSE (mV)"], rows)
        + "\nWhich structure, by the evidence of the training record alone:\n\n"
        + table(["Duffing with", "log evidence", "RMSE (mV)"], second)
        + "\nWhat each choice does, at the posterior mode:\n\n"
        + table(["likelihood and input between samples", "RMSE (mV)"], third)
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
        + "\nWhat the choices do, RMSE in mm at the posterior mode:\n\n"
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
        "Deviances (lower is better), log evidence, and error of prediction on 59 s of another excitation, for each truth; "
        "bold is the best. Where the DIC warns of itself is on the [page of the study](friction.md).\n\n"
        + table(["truth", "model", "DIC", "WAIC", "LOO", "log evidence", "MSE (mm²)"], rows)
    )


def piecewise(found: Mapping[str, Any]) -> str:
    """Probabilities by ABC, evidence by likelihood."""
    titles = {
        "stiffness": "trilinear spring, the paper's prior",
        "visited": "trilinear spring, breakpoints where it goes",
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
        rows.append(["", "share of particles", *(f"{p:.2f}" for p in study["share"]), ""])
        if study["likelihood"]:
            likelihood = [study["likelihood"][name] for name in names]
            cells = [f"{r['log evidence']:.1f} ± {number(r['error'], 2)}" for r in likelihood]
            spent = f"{sum(r['seconds'] for r in likelihood):.0f} s, {sum(r['runs'] for r in likelihood):,.0f} runs"
            rows.append(["", "log evidence", *cells, spent])
    missing = [title for key, title in titles.items() if key not in found]
    note = f"\nNot in the saved file: {'; '.join(missing)}.\n" if missing else ""
    return "How many slopes, by ABC and by likelihood.\n\n" + table(["record", "", *names, "cost"], rows) + note


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
    return "RMSE of free runs after a fit, and seconds of the fit.\n\n" + table(
        ["", "training", "test", "unit", "seconds"], rows
    )


def pem_benchmark(found: Mapping[str, Any]) -> str:
    """Fits beside archimedes."""
    rows = [
        [name, row["iterations"], number(row["seconds"]), number(row.get("ratio")), number(row.get("apart"), 2)]
        for name, row in found["duffing"].items()
    ]
    columns = ["Duffing, T = 3072, four parameters", "iterations", "seconds", "times as long", "optima apart"]
    return f"Beside archimedes {found['archimedes']}, after compilation.\n\n" + table(columns, rows)


def likelihood(found: Mapping[str, Any]) -> str:
    """One likelihood and its gradient."""
    rows = [[name, number(value)] for name, value in found.items() if not isinstance(value, Mapping)]
    growth = [
        [f"{row['T']:,}", number(row["seconds"]), number(row["gradient_MiB"])]
        for row in found.values()
        if isinstance(row, dict)
    ]
    return (
        "Duffing oscillator, T = 3072, EK1 of order 4, two substeps a sample, eight unknowns.\n\n"
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
        "One substep of the filter for one particle with its share of the measurement update, in nanoseconds; 256 particles, "
        "T = 3072.\n\n"
        + table(["", *keys.values()], steps)
        + "\nBeside other packages: Duffing, T = 3072, a batch of 1000 particles on both cores, microseconds a particle.\n\n"
        + table(["", *columns.values()], peers)
        + "\nSums of 64 particles over longer records:\n\n"
        + table(["samples", "seconds"], growth)
    )


def ibis(found: Mapping[str, Any]) -> str:
    """Samplers on the Silverbox."""
    rows = [
        [name, number(row["seconds"], 2), f"{row['evaluations']:,.0f}", f"{row['log evidence']:.1f}", triple(row["rmse mV"])]
        for name, row in found.items()
    ]
    columns = ["", "seconds", "evaluations", "log evidence", "arrow head (mV)"]
    return "The Silverbox posterior from wide priors by 1000 particles, after compilation.\n\n" + table(columns, rows)


def simulator(found: Mapping[str, Any]) -> str:
    """Simulations for ABC."""
    rows = [[name, number(value)] for name, value in found.items() if name != "difference"]
    return "Simulations with their distance to the record, µs a particle.\n\n" + table(["", "µs"], rows)


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
    columns = ["model:method", "fits", "failed", "seconds a fit", "quantity", "rms of z", "in 50 %", "in 90 %"]
    return (
        "Fits of records that were simulated with parameters from the prior: z is the error in posterior standard deviations; "
        "the last columns say how often the central 50 % and 90 % intervals hold the truth.\n\n" + table(columns, rows)
    )


def step_study(found: Mapping[str, Any]) -> str:
    """Bias, coverage and width by solver and step."""
    rows, tables = found["rows"], []
    for kind, title in (("bl", "smooth"), ("foh", "linear between the samples"), ("zoh", "jumping and held")):
        some = [r for r in rows if r["input"] == kind]
        steps = sorted({r["substeps"] for r in some})
        lines = []
        for rate in sorted({r["rate"] for r in some}):
            for solver in dict.fromkeys(r["solver"] for r in some):
                cells = {r["substeps"]: r for r in some if (r["rate"], r["solver"]) == (rate, solver)}
                chosen = next(iter(cells.values()))["chosen"]
                lines.append([f"{solver}, {rate} a period", *(_step_cell(cells[s]) for s in steps), str(chosen)])
        exact = {r["rate"]: r["exact"] for r in some}
        lines += [
            [f"*exact*, {rate} a period", *[f"{e['bias']:.2f} / {100 * e['coverage']:.0f} % / 1.00"] * len(steps), ""]
            for rate, e in exact.items()
        ]
        columns = ["", *(f"{s} substep{'s' * (s > 1)}" for s in steps), "auto"]
        tables.append(f"Input {title}:\n\n" + table(columns, lines))
    return (
        f"Fits of {found['records']} records each: bias of the means in posterior standard deviations / how often 90 % "
        'intervals hold the truth / width beside that of the exact likelihood. Bold is what `substeps="auto"` chooses.\n\n'
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
        [name, row["fits"], f"{row['MiB'][0]:,.0f}", f"{row['MiB'][-1]:,.0f}", f"{row['growth_%']:+.1f} %"]
        for name, row in found.items()
        if "fits" in row
    ]
    text = "Log-likelihood and gradient, seconds after compilation, and the peak of the process.\n\n"
    text += table(["", "value, s", "gradient, s", "MiB"], large)
    if again:
        text += "\nMemory while fitting again and again in one process; growth over the second half.\n\n"
        text += table(["", "fits", "first, MiB", "last, MiB", "growth"], again)
    return text


#: Title, script, file of its results, the page that discusses them, and what makes tables of them.
SECTIONS: tuple[tuple[str, str, str, str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("Silverbox", "examples/silverbox.py", "examples/results/silverbox.json", "silverbox.md", silverbox),
    ("Bouc-Wen", "examples/bouc_wen.py", "examples/results/bouc_wen.json", "bouc_wen.md", bouc_wen),
    ("EMPS", "examples/emps.py", "examples/results/emps.json", "emps.md", emps),
    ("Friction", "examples/friction_models.py", "examples/results/friction_models.json", "friction.md", friction),
    ("Piecewise-linear", "examples/piecewise_linear.py", "examples/results/piecewise_linear.json", "piecewise.md", piecewise),
    ("Prediction errors", "examples/pem.py", "examples/results/pem.json", "pem.md", pem),
    ("Benchmark: prediction errors", "benchmarks/pem.py", "benchmarks/results/pem.json", "pem.md", pem_benchmark),
    ("Benchmark: one likelihood", "benchmarks/likelihood.py", "benchmarks/results/likelihood.json", "design.md", likelihood),
    ("Benchmark: many particles", "benchmarks/batch.py", "benchmarks/results/batch.json", "speed.md", batch),
    ("Benchmark: samplers", "benchmarks/ibis.py", "benchmarks/results/ibis.json", "speed.md", ibis),
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
    ("Benchmark: large problems", "benchmarks/load.py", "benchmarks/results/load.json", "speed.md", load),
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
