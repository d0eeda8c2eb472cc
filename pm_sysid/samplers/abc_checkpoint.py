"""Checkpoint of an ABC nested sampler: one netCDF file, replaced as a whole after every round."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.doors import place
from pm_sysid.samplers.checkpoint import plain, read, write
from pm_sysid.samplers.ellipsoids import Cover, Ellipsoid
from pm_sysid.samplers.populations import COLUMNS, Chances, Population, Proposals, Region


class Saved(NamedTuple):
    """A run after a round: its seed, the last one or two populations, the rounds, and the proposals of each."""

    seed: int
    populations: list[Population]
    history: list[dict[str, Any]]
    mixture: list[tuple[int, Proposals]]


class ABCCheckpoint:
    """The file of a run, and the signature of the settings that it must have."""

    def __init__(self, path: str | os.PathLike[str], signature: dict[str, Any]) -> None:
        self.path, self.signature = place(path, "checkpoint"), plain(signature)
        if self.path.is_dir():
            raise ValueError(f"checkpoint is the folder {self.path}; give a file, such as {self.path / 'run.nc'}.")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def save(self, saved: Saved) -> None:
        """Replace the file; a kill at any time leaves the old or the new one."""
        arrays = {f"{name}_{i}": getattr(p, name) for i, p in enumerate(saved.populations) for name in COLUMNS}
        for r, (_, proposals) in enumerate(saved.mixture):
            for k, region in enumerate(proposals.regions):
                for kind, part in (region._asdict() if region else {}).items():
                    if isinstance(part, Cover):
                        arrays[f"{kind}_{r}_{k}_mean"], arrays[f"{kind}_{r}_{k}_root"] = part.centres, part.roots
                    elif part is not None:
                        arrays[f"{kind}_{r}_{k}_mean"] = part.mean
                        arrays[f"{kind}_{r}_{k}_root"] = np.empty((0, 0)) if part.root is None else part.root
        rest = {
            "abc_ns": self.signature,
            "seed": saved.seed,
            "thresholds": [p.threshold for p in saved.populations],
            "tried": [tried for tried, _ in saved.mixture],
            "models": [proposals.models for _, proposals in saved.mixture],
            "chances": [list(proposals.chances) for _, proposals in saved.mixture],
            "history": saved.history,
        }
        write(self.path, arrays, rest)

    def load(self, sizes: Sequence[int]) -> Saved | None:
        """Read what the run had reached, or None."""
        if not self.path.exists():
            return None
        try:
            arrays, rest = read(self.path)
            signature = rest["abc_ns"]
        except Exception as error:
            raise ValueError(
                f"{self.path} is no checkpoint of sample_abc_ns ({error}); remove it or give another file."
            ) from error
        different = [k for k in self.signature if signature.get(k) != self.signature[k]]
        if different:
            known = ", ".join(f"{k} = {signature.get(k)!r}" for k in different)
            raise ValueError(f"the run in {self.path} has {known}; give the same models and settings, or a new file.")
        populations = []
        for i, threshold in enumerate(rest["thresholds"]):
            populations.append(Population(**{name: arrays[f"{name}_{i}"] for name in COLUMNS}, threshold=threshold))
        mixture = []
        for r, (tried, models, chances) in enumerate(zip(rest["tried"], rest["models"], rest["chances"], strict=True)):
            regions = [_region(arrays, f"{r}_{k}") for k in range(len(sizes))]
            mixture.append((int(tried), Proposals(regions, np.array(models), Chances(*chances), sizes)))
        return Saved(int(rest["seed"]), populations, rest["history"], mixture)


def _region(arrays: dict[str, np.ndarray], key: str) -> Region | None:
    """Region of a model in a round, or None if it had died."""

    def part(kind: str) -> tuple[np.ndarray, np.ndarray] | None:
        root = arrays.get(f"{kind}_{key}_root")
        return None if root is None else (arrays[f"{kind}_{key}_mean"], root)

    large, small, local = part("large"), part("small"), part("local")
    if large is None:
        return None
    return Region(
        Ellipsoid(large[0], large[1] if large[1].size else None),
        None if small is None else Ellipsoid(*small),
        None if local is None else Cover(*local),
    )
