"""Checkpoint of an ABC nested sampler: one file, replaced as a whole after every population."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.arguments import place
from pm_sysid.sampling.abc.cover import Cover
from pm_sysid.sampling.abc.ellipsoids import Ellipsoid, Pieces
from pm_sysid.sampling.abc.population import COLUMNS, Population, ProposalDistribution, ProposalProbabilities, Region
from pm_sysid.storage import check_identity, plain, read, write


class RunState(NamedTuple):
    """A run after a population: its seed, the last one or two populations, the statistics and the proposals of each."""

    seed: int
    populations: list[Population]
    history: list[dict[str, Any]]
    mixture: list[tuple[int, ProposalDistribution]]


class ABCCheckpoint:
    """The file of a run, and the settings that the run which wrote it must have had."""

    def __init__(
        self, path: str | os.PathLike[str], identity: dict[str, Any], test: Callable[[], Mapping[str, np.ndarray]] = dict
    ) -> None:
        self.path, self.identity, self.test = place(path, "checkpoint"), plain(identity), test
        if self.path.is_dir():
            raise ValueError(f"checkpoint is the folder {self.path}; give a file, such as {self.path / 'run.nc'}.")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    @cached_property
    def tested(self) -> Mapping[str, np.ndarray]:
        """What the models give at points drawn for a test, which tells them from others."""
        return self.test()

    def save(self, state: RunState) -> None:
        """Replace the file."""
        arrays = {f"{name}_{i}": getattr(p, name) for i, p in enumerate(state.populations) for name in COLUMNS}
        for r, (_, proposals) in enumerate(state.mixture):
            for k, region in enumerate(proposals.regions):
                for kind, part in (region._asdict() if region else {}).items():
                    if isinstance(part, Cover):
                        arrays[f"{kind}_{r}_{k}_mean"], arrays[f"{kind}_{r}_{k}_root"] = part.centres, part.roots
                        arrays[f"{kind}_{r}_{k}_shares"] = part.shares
                    elif isinstance(part, Pieces):
                        arrays[f"{kind}_{r}_{k}_shares"] = part.shares
                        for j, ellipsoid in enumerate(part.ellipsoids):
                            arrays |= _arrays(ellipsoid, f"{kind}_{r}_{k}_{j}")
                    elif part is not None:
                        arrays |= _arrays(part, f"{kind}_{r}_{k}")
        rest = {
            "abc_ns": self.identity,
            "tested": plain(dict(self.tested)),
            "seed": state.seed,
            "thresholds": [p.threshold for p in state.populations],
            "tried": [tried for tried, _ in state.mixture],
            "models": [proposals.models for _, proposals in state.mixture],
            "probabilities": [list(proposals.probabilities) for _, proposals in state.mixture],
            "history": state.history,
        }
        write(self.path, arrays, rest)

    def load(self, sizes: Sequence[int]) -> RunState | None:
        """Read what the run had reached, or None."""
        if not self.path.exists():
            return None
        try:
            arrays, rest = read(self.path)
            known = rest["abc_ns"]
        except Exception as error:
            raise ValueError(
                f"{self.path} is no checkpoint of sample_abc_ns ({error}); remove it or give another file."
            ) from error
        remedy = "give the same models and settings, or a new file"
        check_identity(known, self.identity, f"the checkpoint in {str(self.path)!r} is of another run", remedy)
        # Files of earlier versions have none, and simulators with random numbers of their own do not repeat themselves.
        for name, before in rest.get("tested", {}).items():
            if not _alike(before, self.tested[name]) and _alike(self.tested[name], self.test()[name]):
                raise ValueError(
                    f"the checkpoint in {str(self.path)!r} is of other models, priors or records: at points drawn for a test "
                    f"the {name} are not what they were; {remedy}."
                )
        populations = []
        for i, threshold in enumerate(rest["thresholds"]):
            populations.append(Population(**{name: arrays[f"{name}_{i}"] for name in COLUMNS}, threshold=threshold))
        mixture = []
        for r, (tried, models, probabilities) in enumerate(
            zip(rest["tried"], rest["models"], rest["probabilities"], strict=True)
        ):
            regions = [_region(arrays, f"{r}_{k}") for k in range(len(sizes))]
            proposals = ProposalDistribution(regions, np.array(models), ProposalProbabilities(*probabilities), sizes)
            mixture.append((int(tried), proposals))
        return RunState(int(rest["seed"]), populations, rest["history"], mixture)


def _alike(one: Any, other: Any) -> bool:
    """Whether two arrays hold the same numbers but for rounding."""
    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-6, atol=0.0, equal_nan=True)


def _arrays(ellipsoid: Ellipsoid, key: str) -> dict[str, np.ndarray]:
    """Arrays of an ellipsoid under a name."""
    found = {f"{key}_mean": ellipsoid.mean, f"{key}_root": np.empty((0, 0)) if ellipsoid.root is None else ellipsoid.root}
    return found if ellipsoid.free is None else found | {f"{key}_free": ellipsoid.free.astype(float)}


def _ellipsoid(arrays: dict[str, np.ndarray], key: str) -> Ellipsoid | None:
    """Ellipsoid that has been saved under a name, if there is one."""
    root, free = arrays.get(f"{key}_root"), arrays.get(f"{key}_free")
    if root is None:
        return None
    return Ellipsoid(arrays[f"{key}_mean"], root if root.size else None, None if free is None else free > 0)


def _region(arrays: dict[str, np.ndarray], key: str) -> Region | None:
    """Region of a model in a population, or None if it had died out."""
    standard, local, shares = (
        _ellipsoid(arrays, f"standard_{key}"),
        arrays.get(f"local_{key}_root"),
        arrays.get(f"pieces_{key}_shares"),
    )
    if standard is None:
        return None
    found = [_ellipsoid(arrays, f"pieces_{key}_{j}") for j in range(0 if shares is None else len(shares))]
    return Region(
        standard,
        _ellipsoid(arrays, f"shrunken_{key}"),
        None if local is None else Cover(arrays[f"local_{key}_mean"], local, arrays[f"local_{key}_shares"]),
        None if shares is None else Pieces(tuple(e for e in found if e is not None), shares),
    )
