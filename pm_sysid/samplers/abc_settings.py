"""Settings of the ABC nested sampler, and its line of progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pm_sysid.doors import number, shown, whole
from pm_sysid.prediction import array


@dataclass(frozen=True)
class Settings:
    """What a run does; see :func:`sample_abc_ns`."""

    particles: int = 1000
    epsilon: float = 200.0
    alpha0: float = 0.4
    alpha_min: float = 0.1
    p_best: float = 0.05
    p_local: float = 0.05
    shrink: float = 0.1
    enlarge: float = 1.1
    tolerance: float = 0.005
    patience: int = 3
    min_acceptance: float = 1e-5

    def __post_init__(self) -> None:
        if not whole(self.particles, 10, 10**8):
            raise ValueError(f"particles is {shown(self.particles)}; give a whole number of at least 10, such as 1000.")
        if not whole(self.patience):
            raise ValueError(f"patience is {shown(self.patience)}; give a whole number of populations, such as 3.")
        limits = {
            "epsilon": (0, np.inf, "a positive distance, such as 200"),
            "alpha0": (0, 1, "a share between 0 and 1, such as 0.4"),
            "alpha_min": (0, 1, "a share between 0 and 1, such as 0.1"),
            "shrink": (0, 1, "a factor between 0 and 1, such as 0.1"),
            "tolerance": (0, 1, "a relative change between 0 and 1, such as 0.005"),
            "min_acceptance": (0, 1, "a share between 0 and 1, such as 1e-5"),
        }
        for name, (low, high, remedy) in limits.items():
            value = getattr(self, name)
            if not low < number(value, name, f"give {remedy}") < high:
                raise ValueError(f"{name} is {shown(value)}; give {remedy}.")
        for name in ("p_best", "p_local"):
            value = getattr(self, name)
            if not 0 <= number(value, name, "give a probability") < 1:
                raise ValueError(f"{name} is {shown(value)}; give a probability from 0 to below 1.")
        if self.p_best + self.p_local >= 1:
            raise ValueError(
                f"p_best and p_local add up to {self.p_best + self.p_local:g}; leave a part of 1 for the ellipsoid of "
                "all particles."
            )
        if not number(self.enlarge, "enlarge", "give a factor of at least 1") >= 1:
            raise ValueError(f"enlarge is {self.enlarge!r}; give a factor of at least 1, such as 1.1.")


class Bar:
    """A line of progress: what the last round has reached, and how far the present one is."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self.task = self.progress.add_task("first population", total=None)
        self.text, self.rounds = "", 0

    def show(self, last: Mapping[str, Any]) -> None:
        """Show a finished round."""
        self.rounds += 1
        alive = zip(self.names, last["probability"], strict=True)
        chances = ", ".join(f"{name} {p:.2f}" for name, p in alive if p > 0)
        self.text = f"population {self.rounds}: threshold {last['threshold']:.4g}, best {last['best']:.4g}, "
        self.text += f"accepted {last['acceptance']:.2g}; {chances}; "
        self.progress.update(self.task, description=self.text)

    def working(self, part: float, simulated: int) -> None:
        """Show how far the present round is."""
        self.progress.update(self.task, description=f"{self.text}next {part:.0%}, {simulated:,} simulations")


def checked_names(models: Any) -> list[str]:
    """Return the names of models."""
    if not isinstance(models, Mapping) or not models:
        raise TypeError(f"models is {type(models).__name__}; give a dict of name: pm.Model.")
    for name, model in models.items():
        if not isinstance(model, pm.Model):
            raise TypeError(f"models[{name!r}] is {type(model).__name__}; give a pm.Model with a simulator.")
        if not isinstance(name, str) or not name or "/" in name or name in ("populations", "particles"):
            raise ValueError(f"models has the name {name!r}; give a text without '/', other than 'populations', 'particles'.")
    return list(models)


def check_same_data(models: Mapping[str, pm.Model]) -> None:
    """Refuse models that are observed on different measurements."""
    data = {}
    for name, model in models.items():
        data[name] = np.concatenate([np.ravel(array(model.rvs_to_values[rv])) for rv in model.observed_RVs] or [np.empty(0)])
    (first, reference), *others = data.items()
    for name, found in others:
        if not np.array_equal(reference, found, equal_nan=True):
            raise ValueError(f"the models {first!r} and {name!r} are observed on different data; give both the same record.")


def prior_probabilities(prior: Mapping[str, float] | None, names: list[str]) -> np.ndarray:
    """Return normalised prior probabilities of the models."""
    if prior is None:
        return np.full(len(names), 1 / len(names))
    if not isinstance(prior, Mapping) or set(prior) != set(names):
        raise ValueError(f"prior is {shown(prior)}; give a probability for each of the models {names}.")
    chances = np.array([number(prior[name], f"prior[{name!r}]") for name in names])
    if not (np.all(np.isfinite(chances)) and np.all(chances > 0)):
        raise ValueError(f"prior is {prior!r}; give positive numbers, and leave out models that are impossible.")
    normalised: np.ndarray = chances / chances.sum()
    return normalised


def checked_seed(random_seed: Any) -> int:
    """Return a seed, drawn if it is not given."""
    if random_seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if not whole(random_seed, 0, 2**128):
        raise ValueError(f"random_seed is {shown(random_seed)}; give a whole number that is not negative, or None.")
    return int(random_seed)
