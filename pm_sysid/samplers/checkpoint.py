"""Checkpoints of a sequential run: one netCDF file a chain, written after every stage and replaced as a whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from scipy.io import netcdf_file

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # no locks on this system
    fcntl = None


class Saved(NamedTuple):
    """A chain after a stage: arrays, numbers, the statistics of all stages so far, and the random generator's state."""

    arrays: dict[str, np.ndarray]
    numbers: dict[str, Any]
    settings: dict[str, Any]
    stages: list[dict[str, Any]]
    generator: dict[str, Any]


class Checkpoint:
    """The file of one chain in a folder.

    Chains are told apart by the state their random generators start from: a run with the same seed finds its files.
    """

    def __init__(self, folder: str | os.PathLike[str], generator: np.random.Generator) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        state = json.dumps(plain(generator.bit_generator.state), sort_keys=True)
        self.key = hashlib.sha256(state.encode()).hexdigest()[:12]
        self.pending: dict[int, np.ndarray] = {}

    @property
    def path(self) -> Path:
        """File of the chain."""
        return self.folder / f"chain-{self.key}.nc"

    def stage_path(self, stage: int) -> Path:
        """File of the particles after a stage, when stages are stored."""
        return self.folder / f"chain-{self.key}-stage-{stage:04d}.nc"

    def save(self, saved: Saved, particles: np.ndarray | None = None) -> None:
        """Replace the chain's file; a kill at any time leaves the old or the new one.

        Particles of a stage that could not be written, the disk being full, are tried again with the next one.
        """
        if particles is not None:
            self.pending[len(saved.stages)] = particles
        for stage in sorted(self.pending):
            write(self.stage_path(stage), {"x": self.pending[stage]}, {})
            del self.pending[stage]
        rest = saved._asdict()
        arrays = rest.pop("arrays")
        write(self.path, arrays, rest)

    def load(self) -> Saved | None:
        """Read what the chain had reached, or None."""
        if not self.path.exists():
            return None
        return _saved(self.path)

    def load_stage(self, stage: int) -> np.ndarray:
        """Particles after a stage."""
        path = self.stage_path(stage)
        try:
            return read(path)[0]["x"]
        except Exception as error:
            raise _foreign(path, error) from error


def _saved(path: Path) -> Saved:
    try:
        arrays, rest = read(path)
        return Saved(arrays, **rest)
    except Exception as error:
        raise _foreign(path, error) from error


def _foreign(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is no checkpoint of sample_ibis, or is damaged ({error}); remove it, or give a new folder.")


def read_chains(folder: Path) -> list[Saved]:
    """All chains of a folder, in no particular order."""
    files = sorted(p for p in folder.glob("chain-*.nc") if "-stage-" not in p.name)
    return [_saved(path) for path in files]


def plain(value: Any) -> Any:
    """Numbers, lists and dicts that JSON can hold."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def write(path: Path, arrays: dict[str, np.ndarray], rest: dict[str, Any]) -> None:
    """Replace a file by arrays and what JSON can hold; a kill at any time leaves the old or the new one."""
    temporary = path.with_suffix(".part")
    try:
        with netcdf_file(str(temporary), "w", version=2) as file:
            # A dimension of length zero means something else in the format.
            file.shapes = json.dumps({name: list(a.shape) for name, a in arrays.items()})
            file.kinds = json.dumps({name: a.dtype.kind for name, a in arrays.items()})
            file.rest = json.dumps(plain(rest))
            for name, array in arrays.items():
                if array.size:
                    dims = [f"{name}_{i}" for i in range(array.ndim)]
                    for dim, length in zip(dims, array.shape, strict=True):
                        file.createDimension(dim, length)
                    file.createVariable(name, "f8", dims)[...] = array
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk must not be filled with halves
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, so that no other process writes to it; the system releases it should this one die."""
    if fcntl is None:
        yield
        return
    with open(path.with_suffix(path.suffix + ".lock"), "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RuntimeError(f"another process is writing {path}; wait for it, or give another checkpoint.") from error
        yield


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what :func:`write` wrote."""
    with netcdf_file(str(path), "r", mmap=False) as file:
        shapes, kinds = json.loads(file.shapes), json.loads(file.kinds)
        rest = json.loads(file.rest)
        arrays = {}
        for name, shape in shapes.items():
            kind = np.int64 if kinds[name] == "i" else np.float64
            found = file.variables[name][...] if np.prod(shape) else np.empty(shape)
            arrays[name] = np.ascontiguousarray(np.reshape(found, shape)).astype(kind)
    return arrays, rest
