"""Benchmark records of nonlinear system identification, from local files or by download.

Each loader looks for its ``.npz`` file in `folder`, else in the folder that the environment variable
``PM_SYSID_DATA`` names; without either it downloads through the optional package ``nonlinear_benchmarks``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pm_sysid.timeseries import InterSample, TimeSeries

__all__ = ["bouc_wen", "emps", "silverbox"]

type Folder = str | os.PathLike[str] | None

FOLDER_VARIABLE = "PM_SYSID_DATA"
EMPS_FORCE_PER_VOLT = 35.15065188248547  # drive gain of the EMPS benchmark, N/V

SilverboxPart = Literal["train", "arrow", "full"]
BoucWenPart = Literal["train", "test_multisine", "test_sinesweep"]
EmpsPart = Literal["train", "test"]

_SILVERBOX_SAMPLES = {"train": slice(49277, 52350), "arrow": slice(999, 40000), "full": slice(None)}


def silverbox(part: SilverboxPart = "train", folder: Folder = None, intersample: InterSample = "bl") -> TimeSeries:
    """Silverbox: an electronic Duffing oscillator, 610.35 Hz.

    Parameters
    ----------
    part : {"train", "arrow", "full"}
        Samples 49,278 to 52,350 (multisine), samples 1,000 to 40,000 (arrow head), or all 131,072.
    folder : path, optional
        Folder with ``silverbox_snls80mv.npz``.
    intersample : {"bl", "foh", "zoh"}
        The input between samples. It was band-limited: ``"zoh"`` makes the simulation error 30 times larger.

    Returns
    -------
    TimeSeries
        Input and output in V; times in seconds from the first sample of the part.

    Raises
    ------
    ValueError, FileNotFoundError
        If `part` is unknown, or there is neither a file nor a way to download it.

    References
    ----------
    T. Wigren and J. Schoukens, "Three free data sets for development and benchmarking in nonlinear system
    identification", European Control Conference, 2013.

    Examples
    --------
    >>> silverbox("train")  # doctest: +SKIP
    TimeSeries: 3073 samples, 5.03316 s, 610.352 Hz
      inputs:  u (band-limited between samples)
      outputs: y (0 missing)
    """
    _check(part, SilverboxPart)
    u, y = _arrays("silverbox_snls80mv.npz", ("u_V", "y_V"), folder, lambda nb: nb.Silverbox(train_test_split=False))
    samples = _SILVERBOX_SAMPLES[part]
    return _record(u[samples], y[samples], 1e7 / 2**14, intersample)


def bouc_wen(part: BoucWenPart = "train", folder: Folder = None, intersample: InterSample = "bl") -> TimeSeries:
    """Hysteretic Bouc-Wen benchmark, 750 Hz.

    Parameters
    ----------
    part : {"train", "test_multisine", "test_sinesweep"}
        Four steady-state periods of a multisine with output noise (32,768 samples), one noiseless period of
        another (8,192; both periodic), or a noiseless sine sweep from rest (153,000).
    folder : path, optional
        Folder with ``boucwen_train_multisine.npz`` or ``boucwen_`` and the part.
    intersample : {"bl", "foh", "zoh"}
        The input between samples.

    Returns
    -------
    TimeSeries
        Input force in N and output displacement in m.

    Raises
    ------
    ValueError, FileNotFoundError
        If `part` is unknown, or there is neither a file nor a way to download it (the training record is a
        file only: the benchmark leaves the training input free).

    References
    ----------
    J.P. Noel and M. Schoukens, "Hysteretic benchmark with a dynamic nonlinearity", Workshop on Nonlinear
    System Identification Benchmarks, Brussels, 2016.

    Examples
    --------
    >>> bouc_wen("test_multisine").periodic  # doctest: +SKIP
    True
    """
    _check(part, BoucWenPart)
    file = "boucwen_train_multisine.npz" if part == "train" else f"boucwen_{part}.npz"
    index = ("test_multisine", "test_sinesweep", "train").index(part)

    def download(nb: Any) -> Any:
        return nb.not_splitted_benchmarks.BoucWen(train_test_split=False)[index]

    u, y = _arrays(file, ("u_N", "y_m"), folder, None if part == "train" else download)
    return _record(u, y, 750.0, intersample, periodic=part != "test_sinesweep")


def emps(part: EmpsPart = "train", folder: Folder = None, intersample: InterSample = "bl") -> TimeSeries:
    """Electro-mechanical positioning system (EMPS): a linear drive with friction, in closed loop, 1 kHz.

    Parameters
    ----------
    part : {"train", "test"}
        The training record or the one with force pulses (24,841 samples each).
    folder : path, optional
        Folder with ``emps_train.npz`` and ``emps_test_pulses.npz``.
    intersample : {"bl", "foh", "zoh"}
        The input between samples (the controller is digital, so ``"zoh"`` is another reading of it).

    Returns
    -------
    TimeSeries
        Input force in N (drive gain times controller voltage) and output motor position in m.

    Raises
    ------
    ValueError, FileNotFoundError
        If `part` is unknown, or there is neither a file nor a way to download it.

    References
    ----------
    A. Janot, M. Gautier and M. Brunot, "Data set and reference models of EMPS", Workshop on Nonlinear System
    Identification Benchmarks, Eindhoven, 2019.

    Examples
    --------
    >>> emps("train").fs  # doctest: +SKIP
    1000.0
    """
    _check(part, EmpsPart)
    file = "emps_train.npz" if part == "train" else "emps_test_pulses.npz"
    volts, y = _arrays(file, ("u_V", "q_m"), folder, lambda nb: nb.EMPS(train_test_split=False)[part == "test"])
    return _record(EMPS_FORCE_PER_VOLT * volts, y, 1000.0, intersample)


def _check(part: str, parts: Any) -> None:
    if part not in get_args(parts):
        raise ValueError(f"part must be one of {', '.join(map(repr, get_args(parts)))}, but is {part!r}")


def _record(u: NDArray[Any], y: NDArray[Any], fs: float, intersample: InterSample, periodic: bool = False) -> TimeSeries:
    return TimeSeries(np.arange(len(u)) / fs, u, y, intersample=intersample, periodic=periodic)


def _arrays(
    file: str, names: tuple[str, str], folder: Folder, download: Callable[[Any], Any] | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Input and output from the file if a folder is named, else by download."""
    if place := folder or os.environ.get(FOLDER_VARIABLE):
        path = Path(place) / file
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}; name the folder that holds {file}, or none to download")
        with np.load(path) as arrays:
            return arrays[names[0]], arrays[names[1]]
    remedy = f"pass the folder that holds it, or name the folder in the environment variable {FOLDER_VARIABLE}"
    if download is None:
        raise FileNotFoundError(f"{file} cannot be downloaded; {remedy}")
    try:
        data = download(import_module("nonlinear_benchmarks"))
    except ImportError as error:
        raise FileNotFoundError(
            f"{file} is in no known folder; {remedy}, or install nonlinear_benchmarks to download the record"
        ) from error
    return data.u, data.y
