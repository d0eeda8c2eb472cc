"""Are the posteriors right? Simulation-based calibration of systems and samplers, and of models that are wrong on purpose.

Every combination draws parameters from the prior, simulates a record, fits it, and ranks the true values (`sid.calibrate`).
``uv run --extra benchmarks benchmarks/calibration.py`` runs all of them for an hour or two; ``--only duffing:nuts`` one,
``--n`` sets the number of fits, ``--short`` makes ten of each and saves nothing; ``--folder`` keeps every fit, to go on after
an interruption; ``--figures`` draws the saved ranks. Results are in ``benchmarks/results/calibration.json``, and
``docs/calibration.md`` says what they mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid
from pm_sysid.sampling.abc.nested_sampling import Run
from pm_sysid.sampling.abc.simulations import Simulations

RESULTS = Path(__file__).parent / "results" / "calibration.json"
FIGURES = Path(__file__).parents[1] / "docs"
#: Standard deviations of an unknown state of the Duffing oscillator at the first sample: about those of its motion.
START = {"z": 0.05, "v": 0.3}


@dataclass(frozen=True)
class Case:
    """A system with known and unknown parameters on a record of its own."""

    system: sid.System
    record: sid.TimeSeries
    known: dict[str, float]
    priors: dict[str, tuple[float, float]]
    noise: float
    solver: Any
    substeps: int
    noise_known: bool = False
    start: Literal["at rest", "inferred", "marginalised"] = "at rest"

    def model(self) -> pm.Model:
        """Log-normal priors; system at rest at the first sample, or with normal states that are inferred or marginalised."""
        with pm.Model() as model, warnings.catch_warnings():
            warnings.simplefilter("ignore", sid.SubstepWarning)  # of models that are wrong on purpose
            free = {name: pm.LogNormal(name, np.log(value), spread) for name, (value, spread) in self.priors.items()}
            noise = self.noise if self.noise_known else pm.LogNormal("noise", np.log(self.noise), 0.5)
            options = {"solver": self.solver, "substeps": self.substeps, "x0": 0.0}
            if self.start == "inferred":
                options["x0"] = {name: pm.Normal(f"{name}0", 0.0, std) for name, std in START.items()}
            elif self.start == "marginalised":
                options["x0_std"] = START
            sid.ODEFilter("y", self.system, self.record, {**self.known, **free}, noise=noise, **options)
        return model

    def clean(self, params: dict[str, Any]) -> np.ndarray:
        """Accurate free run, from the state at the first sample where that is unknown."""
        values = {**self.known, **{name: params[name] for name in self.priors}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sid.SubstepWarning)
            x0 = 0.0 if self.start == "at rest" else params["y_x0"]
            run = sid.simulate(self.system, self.record, values, x0=x0, substeps=32)
        return np.stack([run[o].values for o in self.system.outputs], axis=1).reshape(self.record.y.shape)

    def accurate(self, params: dict[str, Any], rng: np.random.Generator) -> sid.TimeSeries:
        """Accurate free run and noise: what nature does, which knows of no filter."""
        y = self.clean(params)
        return self.record.replace(y=y + params.get("noise", self.noise) * rng.standard_normal(y.shape))


@dataclass(frozen=True)
class Pushed:
    """A case in which nobody recorded one of the inputs: a Matern process whose scale and length are unknown as well.

    The model knows of it, or does without it and has the system ``unaware``.
    """

    case: Case
    latent: str
    hyper: dict[str, tuple[float, float]]
    unaware: sid.System

    def model(self) -> pm.Model:
        """The process of the record's missing input, inferred with everything else."""
        with pm.Model() as model:
            free, noise = self._free({**self.case.priors, **self.hyper}), pm.LogNormal("noise", np.log(self.case.noise), 0.5)
            process = sid.Matern(nu=1.5, scale=free.pop("scale"), length=free.pop("length"))
            options = {"solver": self.case.solver, "substeps": self.case.substeps, "x0": 0.0}
            params = {**self.case.known, **free}
            sid.ODEFilter(
                "y", self.case.system, self.case.record, params, noise=noise, latent={self.latent: process}, **options
            )
        return model

    def model_without(self) -> pm.Model:
        """The same priors, and no force but the recorded one."""
        return replace(self.case, system=self.unaware).model()

    def accurate(self, params: dict[str, Any], rng: np.random.Generator) -> sid.TimeSeries:
        """A drawn force, an accurate run and noise; where a model knows of no force, its prior says how large it is."""
        size = {name: params.get(name, float(np.exp(rng.normal(np.log(m), s)))) for name, (m, s) in self.hyper.items()}
        values = {**self.case.known, **{name: params[name] for name in self.case.priors}}
        run = sid.simulate(
            self.case.system,
            self.case.record,
            values,
            x0=0.0,
            latent={self.latent: sid.Matern(nu=1.5, **size)},
            substeps=16,
            random_seed=int(rng.integers(2**31)),
        )
        y = run[self.case.system.outputs[0]].to_numpy()
        return self.case.record.replace(y=y + params["noise"] * rng.standard_normal(y.shape))

    @staticmethod
    def _free(priors: dict[str, tuple[float, float]]) -> dict[str, Any]:
        return {name: pm.LogNormal(name, np.log(value), spread) for name, (value, spread) in priors.items()}


@dataclass(frozen=True)
class Ball:
    """Records with errors uniform in a ball, and the ABC posterior whose tolerance is that ball: exact by construction.

    The run goes down to the last threshold above the tolerance, or ends before it, and the particles within the tolerance are
    weighted draws from ``p(theta | distance < tolerance)``, which is the posterior under such errors (Wilkinson 2013).
    """

    case: Case
    radius: float
    particles: int = 1000

    def model(self) -> pm.Model:
        """The same priors, and a simulator."""
        with pm.Model() as model:
            free = {name: pm.LogNormal(name, np.log(value), spread) for name, (value, spread) in self.case.priors.items()}
            y = self.case.clean({name: value for name, (value, _) in self.case.priors.items()})
            template = self.case.record.replace(y=y)
            sid.ODESimulator("y", self.case.system, template, {**self.case.known, **free}, x0=0.0, substeps=8)
        return model

    def record(self, params: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
        """Free run and a point of the ball, whose radius is ``radius`` as a root mean square."""
        y = self.case.clean(params)
        direction = rng.standard_normal(y.size)
        return y + self.radius * np.sqrt(y.size) * rng.random() ** (1 / y.size) * direction / np.linalg.norm(direction)

    def fit(self, model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        """Draws from the particles within the tolerance."""
        tolerance = 100 * self.radius**2 / np.var(model.rvs_to_values[model["y"]].get_value())
        simulations = Simulations({"duffing": model}, None)
        run = Run(self.particles, simulations, np.ones(1), int(rng.integers(2**31)))
        while not run.history or (run.history[-1]["threshold"] > tolerance and run._converged() is None):
            run.next_population()
        if len(run.populations) < 2:
            raise RuntimeError("the first threshold is below the tolerance")
        # Errors in a ball leave less than the Gaussian ones by which a run knows how narrow a threshold has a meaning.
        within = run.populations[-2 if run.history[-1]["threshold"] <= tolerance else -1].below(tolerance)
        if within.ess < 50:
            raise RuntimeError(f"only {within.ess:.0f} effective particles are within the tolerance")
        drawn = rng.choice(len(within), 500, p=within.weight / within.weight.sum())
        cube = simulations.cubes[0]
        values = cube.values(within.points[drawn, : cube.size])
        return xr.Dataset({name: (("chain", "draw"), v[None]) for name, v in values.items()})


def excitation(T: int, step: float, low: float, high: float, size: float, outputs: int = 1, seed: int = 1) -> sid.TimeSeries:
    """Multisine, and outputs that are still to be simulated."""
    rng, t = np.random.default_rng(seed), step * np.arange(T)
    u = sum(np.sin(2 * np.pi * f * t + a) for f, a in zip(np.linspace(low, high, 8), rng.uniform(0, 6.28, 8), strict=True))
    return sid.TimeSeries(t, size * u, np.zeros(T) if outputs == 1 else np.zeros((T, outputs)))


def cases() -> dict[str, Case]:
    """Systems."""
    return {
        "duffing": Case(
            sid.models.duffing(),
            excitation(80, 0.05, 0.3, 2.5, 3.0),
            {"m": 1.0},
            {"c": (1.0, 0.3), "k": (100.0, 0.2), "k3": (2000.0, 0.3)},
            0.01,
            sid.EK1(order=4),
            2,
        ),
        "bouc_wen": Case(
            sid.models.bouc_wen(observe="displacement"),
            excitation(100, 0.05, 0.3, 2.5, 4.0),
            {"m": 1.0, "gamma": 0.8, "delta": -0.5},
            {"c": (0.5, 0.3), "k": (50.0, 0.2), "alpha": (50.0, 0.2), "beta": (20.0, 0.3)},
            0.01,
            sid.EK1(order=3),
            4,
        ),
        "two_dof": Case(
            sid.models.chain(2, {1: "cubic"}),
            excitation(80, 0.05, 0.3, 3.0, 4.0, outputs=2),
            {"m1": 1.0, "m2": 0.7},
            {"k1": (120.0, 0.2), "k2": (80.0, 0.2), "c1": (1.0, 0.3), "c2": (0.5, 0.3), "k3_1": (3000.0, 0.3)},
            0.01,
            sid.EK1(order=4),
            2,
        ),
        "friction": Case(
            sid.models.friction_oscillator("tanh", g=0.0),
            excitation(120, 0.05, 0.3, 2.0, 3.0),
            {"m": 1.0, "k3": 0.0, "beta": 10.0},
            {"c": (0.5, 0.3), "k": (60.0, 0.2), "Fc": (1.5, 0.3)},
            0.01,
            sid.EK1(order=3),
            4,
        ),
    }


def pushed() -> Pushed:
    """The Duffing oscillator with a force that nobody recorded, as large as the recorded one."""

    def motion(force: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda t, x, u, p: (x.v, (force(u) - p.c * x.v - p.k * x.z - p.k3 * x.z**3) / p.m)

    case, given = cases()["duffing"], {"states": ("z", "v"), "params": ("m", "c", "k", "k3")}
    aware = sid.System(motion(lambda u: u.u + u.d), inputs=("u", "d"), observe=lambda t, x, dx, u, p: x.z, **given)
    unaware = sid.System(motion(lambda u: u.u), inputs=("u",), observe=lambda t, x, dx, u, p: x.z, **given)
    return Pushed(replace(case, system=aware), "d", {"scale": (3.0, 0.5), "length": (0.4, 0.4)}, unaware)


@dataclass(frozen=True)
class Study:
    """One combination: what is fitted to what, and how often."""

    build: Callable[[], pm.Model]
    generate: Any
    fit: Any
    n: int
    settings: dict[str, Any]


def studies() -> dict[str, Study]:
    """Combinations by name; those whose name ends in ``!`` are wrong and must be found so."""
    by_name = cases()
    duffing, nuts = by_name["duffing"], {"draws": 250, "tune": 150}
    stiffness_known = replace(
        duffing, known={"m": 1.0, "k3": 2000.0}, priors={k: v for k, v in duffing.priors.items() if k != "k3"}
    )
    ball = Ball(duffing, 0.02)
    noise_halved = replace(duffing, noise_known=True, noise=duffing.noise / 2)
    slow_samples = excitation(80, 0.1, 0.3, 2.5, 3.0)
    coarse = replace(duffing, record=slow_samples, solver=sid.EK1(order=3), substeps=1)
    found = {
        "duffing:ibis, accurate records": Study(duffing.model, duffing.accurate, "ibis", 200, {}),
        "duffing:pem": Study(duffing.model, duffing.accurate, "pem", 500, {"data": duffing.record, "draws": 500}),
        "noise halved:ibis!": Study(noise_halved.model, with_noise(duffing), "ibis", 200, {}),
        "coarse steps, RK4:ibis!": Study(partial(runge_kutta, coarse), values(coarse), "ibis", 200, {}),
        "coarse steps, filter:ibis!": Study(coarse.model, coarse.accurate, "ibis", 200, {}),
        "duffing:abc": Study(ball.model, ball.record, ball.fit, 200, {}),
        "duffing:nuts": Study(duffing.model, "model", "nuts", 200, nuts),
        "duffing, k3 known:annealing": Study(stiffness_known.model, "model", "annealing", 200, {}),
    }
    kinks = replace(by_name["bouc_wen"], solver=sid.EK1(order=4), substeps=2)
    found["coarse steps, hysteresis:ibis!"] = Study(kinks.model, kinks.accurate, "ibis", 200, {})
    for name in ("bouc_wen", "two_dof", "friction"):
        case = by_name[name]
        found[f"{name}:ibis, accurate records"] = Study(case.model, case.accurate, "ibis", 200, {})
    case = by_name["friction"]
    found["friction:annealing"] = Study(case.model, "model", "annealing", 200, {})
    for name in ("bouc_wen", "two_dof"):
        found[f"{name}:nuts"] = Study(by_name[name].model, "model", "nuts", 200, nuts)
    inferred, marginalised = replace(duffing, start="inferred"), replace(duffing, start="marginalised")
    for case in (inferred, marginalised):
        found[f"duffing, start {case.start}:ibis, accurate records"] = Study(case.model, case.accurate, "ibis", 200, {})
    pem = {"data": duffing.record, "draws": 500, "x0": None}
    found["duffing, start estimated:pem"] = Study(marginalised.model, marginalised.accurate, "pem", 500, pem)
    force = pushed()
    found["force not recorded:ibis, accurate records"] = Study(force.model, force.accurate, "ibis", 200, {})
    found["force not modelled:ibis!"] = Study(force.model_without, force.accurate, "ibis", 200, {})
    found["duffing:ibis"] = Study(duffing.model, "model", "ibis", 400, {})
    found["duffing:nuts, accurate records"] = Study(duffing.model, duffing.accurate, "nuts", 200, nuts)
    return found


def with_noise(case: Case) -> Callable[[dict[str, Any], np.random.Generator], sid.TimeSeries]:
    """Records with the noise of a case, for a model that believes in half of it."""
    return lambda params, rng: case.accurate({**params, "noise": case.noise}, rng)


def values(case: Case) -> Callable[[dict[str, Any], np.random.Generator], np.ndarray]:
    """Accurate records as arrays, for a likelihood of PyMC's own."""
    return lambda params, rng: np.asarray(case.accurate(params, rng).y)


def runge_kutta(case: Case) -> pm.Model:
    """The model that trusts its integrator: one classical Runge-Kutta step a sample, and nothing but noise beside it."""
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        free = {name: pm.LogNormal(name, np.log(value), spread) for name, (value, spread) in case.priors.items()}
        noise = pm.LogNormal("noise", np.log(case.noise), 0.5)
        run = sid.simulate(case.system, case.record, {**case.known, **free}, x0=0.0, substeps=1)
        pm.Normal("y", run, noise, observed=pm.Data("y_data", case.record.y))
    return model


def saved(result: xr.DataTree) -> dict[str, Any]:
    """What is kept of a result: ranks and z-scores by parameter, rounded."""
    found = result["calibration"].to_dataset()
    fine = found.isel(fit=np.flatnonzero(~found["failed"].values))
    by_parameter = {
        str(p): {
            "pit": np.round(fine["pit"].sel(parameter=p).values, 4).tolist(),
            "z": np.round(fine["z"].sel(parameter=p).values, 2).tolist(),
            "contraction": round(float(fine["contraction"].sel(parameter=p).median()), 4),
        }
        for p in found["parameter"].values
    }
    return {
        "fits": found.sizes["fit"],
        "failed": int(found["failed"].sum()),
        "messages": sorted({m[:200] for m in found["message"].values if m}),
        "fit": found.attrs["fit"],
        "generate": found.attrs["generate"],
        "seconds a fit": round(float(fine["seconds"].median()), 3),
        "r_hat above 1.05": int((fine["r_hat"].max("parameter") > 1.05).sum()),
        "ranked": round(float(fine["ranked"].mean()), 1),
        "tests": str(sid.calibration_tests(result)).splitlines(),
        "parameters": by_parameter,
    }


def restored(entry: dict[str, Any]) -> xr.DataTree:
    """What the figures need of a saved result."""
    table = {k: np.array([p[k] for p in entry["parameters"].values()], dtype=float).T for k in ("pit", "z")}
    table["pit"] = np.clip(table["pit"], 5e-5, 1 - 5e-5)  # as they were before they were rounded
    shape = table["pit"].shape
    contraction = np.broadcast_to([p["contraction"] for p in entry["parameters"].values()], shape)
    columns = {**table, "contraction": contraction, "r_hat": np.ones(shape)}
    data = {k: (("fit", "parameter"), v) for k, v in columns.items()}
    coords = {"fit": np.arange(shape[0]), "parameter": list(entry["parameters"])}
    by_fit = {"failed": ("fit", np.zeros(shape[0], bool)), "ranked": ("fit", np.full(shape[0], int(entry["ranked"])))}
    found = xr.Dataset({**data, **by_fit}, coords)
    return xr.DataTree.from_dict({"calibration": found})


def figures() -> None:
    """Draw what is saved, a row a combination."""
    from matplotlib import pyplot as plt

    known = json.loads(RESULTS.read_text())
    groups: dict[str, list[str]] = {"duffing": [], "systems": [], "wrong": []}
    for name in known:
        system = name.split(":")[0]
        group = "duffing" if system.startswith("duffing") else "wrong" if name.endswith("!") else "systems"
        groups[group].append(name)
    for (group, names), kind in itertools.product(groups.items(), ("ecdf", "rank")):
        if not names:
            continue
        columns = max(len(known[name]["parameters"]) for name in names)
        size = (1.9 * columns, 1.7 * len(names) + 0.3)
        figure, grid = plt.subplots(len(names), columns, figsize=size, squeeze=False, layout="constrained")
        for row, name in zip(grid, names, strict=True):
            count = len(known[name]["parameters"])
            sid.plot_calibration(restored(known[name]), kind, axes=row[:count])
            for panel in row[count:]:
                panel.set_axis_off()
            for panel in row[1:count]:
                panel.set_ylabel("")
            row[0].set_ylabel(name.replace(":", "\n").replace(", ", "\n"), fontsize="small")
            for panel in row:
                panel.set_xlabel("rank of the truth" if name == names[-1] else "")
        figure.savefig(FIGURES / f"calibration_{group}_{kind}.png", dpi=70)
        plt.close(figure)


def table() -> None:
    """Print what is saved as a table: largest bias and widths in posterior standard deviations, by normal scores."""
    print("| | records | fits | failed | s per fit | location | width | smallest p | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, entry in json.loads(RESULTS.read_text()).items():
        tests = sid.calibration_tests(restored(entry))
        least = min(float(np.min(p)) for p in (tests.uniform_p, tests.location_p, tests.width_p))
        said = "; ".join(f"{p}: {tests.verdict(p)}" for p in tests.parameters if tests.verdict(p) != "fine") or "no sign"
        location = tests.location[np.argmax(np.abs(tests.location))]
        made = "model" if entry["generate"] == "model" else "accurate"
        short = name.split(", acc")[0].rstrip("!")
        print(
            f"| {short} | {made} | {entry['fits']} | {entry['failed']} | {entry['seconds a fit']:.2f} | "
            f"{location:+.2f} | {tests.width.min():.2f} to {tests.width.max():.2f} | {least:.1g} | {said} |"
        )


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="a combination, or the beginning of its name")
    parser.add_argument("--n", type=int, help="number of fits")
    parser.add_argument("--short", action="store_true", help="ten fits of each, nothing saved")
    parser.add_argument("--folder", type=Path, help="where every fit is kept")
    parser.add_argument("--figures", action="store_true", help="only draw what is saved")
    parser.add_argument("--table", action="store_true", help="only print what is saved")
    options = parser.parse_args()
    if options.table:
        table()
        return
    if options.figures:
        figures()
        return
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    for name, study in studies().items():
        if options.only and not any(name.startswith(o) for o in options.only):
            continue
        n = 10 if options.short else options.n or study.n
        folder = None if options.folder is None else options.folder / name.replace(":", "_").replace(" ", "_")
        result = sid.calibrate(
            study.build,
            n,
            fit=study.fit,
            generate=study.generate,
            random_seed=2025,
            folder=folder,
            progressbar=False,
            **study.settings,
        )
        entry = saved(result)
        print(f"{name}: {entry['seconds a fit']} s a fit", *entry["tests"], "", sep="\n", flush=True)
        if not options.short:
            known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps({**known, name: entry}, indent=None, separators=(",", ":")).replace('},"', '},\n"'))


if __name__ == "__main__":
    main()
