"""Runs on disk: files that are replaced as a whole, locks against a second process, and whose run a file is.

Arrays, numbers, statistics and states of random generators are kept as netCDF with JSON text, never as pickled objects.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

# -- one file -------------------------------------------------------------------------------------------------------------


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a path to write to, which then takes the place of the file; a kill at any time leaves the old or the new one."""
    temporary = path.with_name(f"{path.name}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk must not be filled with halves
        raise


def plain(value: Any) -> Any:
    """Numbers, lists and dicts that JSON can hold."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def write(path: Path, arrays: Mapping[str, np.ndarray], rest: Mapping[str, Any]) -> None:
    """Replace a file by arrays of numbers and what JSON can hold."""
    with replaced(path) as temporary, scipy.io.netcdf_file(str(temporary), "w", version=2) as file:
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


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what :func:`write` wrote."""
    with scipy.io.netcdf_file(str(path), "r", mmap=False) as file:
        shapes, kinds = json.loads(file.shapes), json.loads(file.kinds)
        rest = json.loads(file.rest)
        arrays = {}
        for name, shape in shapes.items():
            kind = np.int64 if kinds[name] == "i" else np.float64
            found = file.variables[name][...] if np.prod(shape) else np.empty(shape)
            arrays[name] = np.ascontiguousarray(np.reshape(found, shape)).astype(kind)
    return arrays, rest


def write_settings(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file by the settings of a run, as JSON text."""
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(plain(value), indent=1), encoding="utf-8")


def read_settings(path: Path, remedy: str) -> dict[str, Any]:
    """Read what :func:`write_settings` wrote, with the seed of a run in it; nothing where there is no file."""
    if not path.exists():
        return {}
    try:
        found = dict(json.loads(path.read_text(encoding="utf-8")))
        _ = found["random_seed"]
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); {remedy}.") from error


# -- whose it is ----------------------------------------------------------------------------------------------------------


def check_identity(known: Mapping[str, Any], now: Mapping[str, Any], place: str, remedy: str) -> None:
    """Refuse what was written by a run with other settings, and say which these are.

    Parameters
    ----------
    known, now : mapping
        Settings of the run that wrote, as they were read, and of the present one.
    place : str
        Subject of the message, such as "the checkpoint in 'run.nc' is of another run".
    remedy : str
        What to do.
    """
    wanted = plain(now)
    other = [k for k in wanted if known.get(k) != wanted[k]]
    if other:
        differences = ", ".join(f"{k} was {known.get(k)!r} and is {wanted[k]!r}" for k in other)
        raise ValueError(f"{place}: {differences}; {remedy}.")


def check_seed(random_seed: Any, known: Any, place: Path, remedy: str) -> None:
    """Refuse to go on with another seed than that of the run which wrote."""
    if random_seed is not None and random_seed != known:
        raise ValueError(
            f"random_seed is {random_seed!r}, but the run in {place} began with {known}; leave it out to go on, or {remedy}."
        )


# -- one writer -----------------------------------------------------------------------------------------------------------


class Lock:
    """A file beside another one that one process at a time can hold; the system releases it should the process die.

    A process does not lock out itself, nor its worker processes: they go on with what an interrupted call has left.
    """

    def __init__(self, path: Path, remedy: str = "give another checkpoint") -> None:
        from filelock import FileLock  # not above: from then on each call of id() is audited, and graphs take a tenth longer

        self.path, self.remedy = path, remedy
        self.file = FileLock(path.with_name(f"{path.name}.lock"), timeout=0, thread_local=False)

    def acquire(self, *, shared_with_own: bool = False) -> None:
        """Take the lock, or refuse; ``shared_with_own`` lets in the process that holds it, and its workers."""
        from filelock import Timeout

        marker = Path(self.file.lock_file)
        try:
            self.file.acquire()
        except Timeout as error:
            if shared_with_own and _holder(marker) in _own_processes():
                return
            raise RuntimeError(f"another process is writing {self.path}; wait for it, or {self.remedy}.") from error
        with suppress(OSError):
            marker.write_text(str(os.getpid()))

    def release(self) -> None:
        """Give the lock back, and remove its file while nobody else can hold it."""
        if self.file.is_locked:
            with suppress(OSError):
                Path(self.file.lock_file).unlink()
            self.file.release(force=True)


def _holder(marker: Path) -> str:
    """Number of the process that holds a lock, as it noted it; nothing where it cannot be read."""
    try:
        return marker.read_text()
    except OSError:
        return ""


def _own_processes() -> set[str]:
    """Number of this process, and of the one whose worker it is."""
    parent = multiprocessing.parent_process()
    return {str(os.getpid())} | ({str(parent.pid)} if parent is not None else set())


@contextmanager
def locked(path: Path, remedy: str = "give another checkpoint") -> Iterator[None]:
    """Hold a file's lock, so that no other run writes to it."""
    lock = Lock(path, remedy)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


# -- chains ---------------------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """A chain after a stage: arrays, numbers, the statistics of all stages so far, and the random generator's state."""

    arrays: dict[str, np.ndarray]
    numbers: dict[str, Any]
    settings: dict[str, Any]
    stages: list[dict[str, Any]]
    generator: dict[str, Any]


class Checkpoint:
    """The file of one chain in a folder, with its lock.

    Chains are told apart by the state their random generators start from: a run with the same seed finds its files. The lock
    is held from here to :meth:`release`, or to the end of the object.

    Raises
    ------
    RuntimeError
        If another process writes this chain.
    """

    def __init__(self, folder: str | os.PathLike[str], generator: np.random.Generator) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        state = json.dumps(plain(generator.bit_generator.state), sort_keys=True)
        self.key = hashlib.sha256(state.encode()).hexdigest()[:12]
        self.pending: dict[int, np.ndarray] = {}
        self.lock: Lock | None = Lock(self.path)
        self.lock.acquire(shared_with_own=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock, which belongs to a process."""
        return {**self.__dict__, "lock": None}

    @property
    def path(self) -> Path:
        """File of the chain."""
        return self.folder / f"chain-{self.key}.nc"

    def stage_path(self, stage: int) -> Path:
        """File of the particles after a stage, when stages are stored."""
        return self.folder / f"chain-{self.key}-stage-{stage:04d}.nc"

    def save(self, saved: Saved, particles: np.ndarray | None = None) -> None:
        """Replace the chain's file.

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

    def load(self, identity: Mapping[str, Any] | None = None) -> Saved | None:
        """Read what the chain had reached, or None; refuse a chain of other settings than ``identity``."""
        if not self.path.exists():
            return None
        saved = _saved(self.path)
        if identity is not None:
            check_identity(
                saved.settings, identity, f"the checkpoint in {str(self.folder)!r} is of another run", "give a new folder"
            )
        return saved

    def load_stage(self, stage: int) -> np.ndarray:
        """Particles after a stage."""
        path = self.stage_path(stage)
        try:
            return read(path)[0]["x"]
        except Exception as error:
            raise _foreign(path, error) from error

    def release(self) -> None:
        """Give back the lock of a chain that has ended."""
        if self.lock is not None:
            self.lock.release()


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
