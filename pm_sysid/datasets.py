"""Benchmark records of nonlinear system identification, from local files or by download.

Each loader reads its ``.npz`` file from `folder`, or from the folder named by the environment variable ``PM_SYSID_DATA``.
Without either it downloads the record through the optional package ``nonlinear_benchmarks``, which shows its progress and
keeps the download. Downloaded records are compared with check sums of the published records.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from pm_sysid.arguments import among, place, shown, whole
from pm_sysid.records.timeseries import InterSample, TimeSeries

__all__ = ["EmpsController", "benchmark", "bouc_wen", "emps", "emps_controller", "f16", "silverbox"]


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


type Folder = str | os.PathLike[str] | None

FOLDER_VARIABLE = "PM_SYSID_DATA"
EMPS_FORCE_PER_VOLT = 35.15065188248547  # drive gain of the EMPS benchmark, N/V

SilverboxPart = Literal["train", "arrow", "full", "multisine_train", "multisine_test", "arrow_full", "arrow_no_extrapolation"]
BoucWenPart = Literal["train", "test_multisine", "test_sinesweep"]
EmpsPart = Literal["train", "test"]
F16Part = Literal["full", "steady"]

_SILVERBOX_SAMPLES = {
    "train": slice(49277, 52350),
    "arrow": slice(999, 40000),
    "full": slice(None),
    "multisine_train": slice(40650, 105712),
    "multisine_test": slice(105712, 127400),
    "arrow_full": slice(100, 40575),
    "arrow_no_extrapolation": slice(100, 32100),
}
_F16_PERIOD = 8192

#: Samples of the published records, and of each channel the norm and the sum weighted by ``cos(k^2 / 7)``. Of the levels of
#: the F-16 only the first is known.
_PUBLISHED: dict[str, tuple[int, list[tuple[float, float]]]] = {
    "silverbox_snls80mv.npz": (131072, [(8.24556866, 5.40084148), (19.3240692, -19.8198726)]),
    "boucwen_test_multisine.npz": (8192, [(4525.46959, -2391.1215), (0.060364578, 0.0472440558)]),
    "boucwen_test_sinesweep.npz": (153000, [(11063.4533, -1669.77797), (0.259620316, -0.453213302)]),
    "emps_train.npz": (24841, [(242.591257, 238.65912), (23.4573007, -15.3634831)]),
    "emps_test_pulses.npz": (24841, [(262.096245, 254.937573), (23.4658256, -15.3642664)]),
    "f16_fullmsine_level1.npz": (
        73728,
        [(3357.42792, 2925.8569), (66.1591698, 37.9021043), (105.078064, 61.3074669), (97.6382364, 48.6161994)],
    ),
}
#: Tolerance of a check sum relative to the norm: text of seven digits passes, one sample wrong by 0.04 % of the rms does not.
_CHECKED = 1e-6

#: Benchmarks of the package ``nonlinear_benchmarks`` that have a split into training and test records.
_SPLIT = ("CED", "Cascaded_Tanks", "EMPS", "F16", "ParWH", "Silverbox", "WienerHammerBenchMark")


class EmpsController(NamedTuple):
    """Controller of the EMPS: ``volts = kv (kp (reference - q) - q') + pulses``, at most 10 V; force = gain times volts.

    `reference` (m) and `pulses` (V) have shape (T,); `kp` is in 1/s, `kv` in V s/m, `gain` in N/V.
    """

    reference: NDArray[np.float64]
    pulses: NDArray[np.float64]
    kp: float
    kv: float
    gain: float


def silverbox(part: SilverboxPart = "train", folder: Folder = None, intersample: InterSample = "bl") -> TimeSeries:
    """Silverbox: an electronic Duffing oscillator, 610.35 Hz.

    Parameters
    ----------
    part : {"train", "arrow", "full", "multisine_train", "multisine_test", "arrow_full", "arrow_no_extrapolation"}
        Samples 49,278 to 52,350 (multisine), samples 1,000 to 40,000 (arrow head), or all 131,072. The other parts are the
        split of the benchmark: three quarters of the multisines, the last quarter, the arrow head, and its first 32,000
        samples (outputs up to 7 % above those of the multisines). The scores of the benchmark leave out the first 50 samples
        of each test record.
    folder : path, optional
        Folder with ``silverbox_snls80mv.npz``.
    intersample : {"bl", "foh", "zoh"}
        Behaviour of the input between the samples. It was band-limited: ``"zoh"`` makes the simulation error 30 times larger.

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
        Behaviour of the input between the samples.

    Returns
    -------
    TimeSeries
        Input force in N and output displacement in m.

    Raises
    ------
    ValueError, FileNotFoundError
        If `part` is unknown, or there is neither a file nor a way to download it (the training record cannot be downloaded,
        because the benchmark does not prescribe the training input).

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
        Behaviour of the input between the samples (the controller is digital, so ``"zoh"`` is also justified).

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


def emps_controller(part: EmpsPart = "train", folder: Folder = None) -> EmpsController:
    """Reference, gains and pulses of an EMPS record, for runs in closed loop.

    Parameters
    ----------
    part : {"train", "test"}
        The record, as for :func:`emps`.
    folder : path, optional
        Folder with ``emps_train.npz`` and ``emps_test_pulses.npz``. There is no download.

    Returns
    -------
    EmpsController
        Reference, pulses and gains; the pulses are zero in the training record.

    Raises
    ------
    ValueError, FileNotFoundError
        If `part` is unknown, or there is no file.

    Examples
    --------
    >>> emps_controller("test").pulses.max()  # doctest: +SKIP
    5.0
    """
    _check(part, EmpsPart)
    file = "emps_train.npz" if part == "train" else "emps_test_pulses.npz"
    names = ("qref_m", "kp_per_s", "kv_Vs_per_m", "gtau_N_per_V", *(("pulse_V",) if part == "test" else ()))
    reference, kp, kv, gain, *pulses = _arrays(file, names, folder, None)
    return EmpsController(reference, pulses[0] if pulses else np.zeros_like(reference), float(kp), float(kv), float(gain))


def f16(level: int = 1, part: F16Part = "full", folder: Folder = None, intersample: InterSample = "bl") -> TimeSeries:
    """Ground vibration test of an F-16: a wing with a payload, with clearance and friction in its mounting, 400 Hz.

    Parameters
    ----------
    level : {1, 2, 3, 4, 5, 6, 7}
        Level of the full multisine (2 to 15 Hz); 1, 3, 5 and 7 are for training, 2, 4 and 6 for tests.
    part : {"full", "steady"}
        All periods of 8,192 samples, or all periods after the first, as a periodic record. At level 1 the first period
        differs from the others by 4 % of the accelerations, and the others differ among each other by 1 % (noise).
    folder : path, optional
        Folder with ``f16_fullmsine_level1.npz``, or that of another level.
    intersample : {"bl", "foh", "zoh"}
        Behaviour of the input between the samples.

    Returns
    -------
    TimeSeries
        Input force (N), outputs ``acc1`` at the excitation, ``acc2`` and ``acc3`` on the side of the wing and of the payload
        of the interface, in the unit of the source.

    Raises
    ------
    ValueError, FileNotFoundError
        If `level` or `part` is unknown, or there is neither a file nor a way to download it.

    References
    ----------
    J.P. Noel and M. Schoukens, "F-16 aircraft benchmark based on ground vibration test data", Workshop on Nonlinear System
    Identification Benchmarks, Brussels, 2017.

    Examples
    --------
    >>> f16().outputs  # doctest: +SKIP
    ('acc1', 'acc2', 'acc3')
    """
    if not whole(level, 1, 7):
        raise ValueError(f"level must be one of 1 to 7, but is {shown(level)}")
    _check(part, F16Part)

    def download(nb: Any) -> tuple[NDArray[Any], ...]:
        channels = [_named(nb.F16(train_test_split=False, output_index=i), f"FullMSine_Level{level}") for i in range(3)]
        return channels[0].u, *(channel.y for channel in channels)

    force, *acc = _arrays(f"f16_fullmsine_level{level}.npz", ("force_N", "acc1", "acc2", "acc3"), folder, download)
    kept = slice(_F16_PERIOD, None) if part == "steady" else slice(None)
    y = np.stack([a[kept] for a in acc], axis=1)
    record = _record(force[kept], y, 400.0, intersample, periodic=part == "steady")
    return record.replace(inputs="force", outputs=("acc1", "acc2", "acc3"))


def benchmark(name: str, part: Literal["train", "test"] = "train", intersample: InterSample = "bl") -> list[TimeSeries]:
    """Records of a benchmark of the package ``nonlinear_benchmarks``, which downloads and keeps them.

    Parameters
    ----------
    name : {"CED", "Cascaded_Tanks", "EMPS", "F16", "ParWH", "Silverbox", "WienerHammerBenchMark"}
        Name of the benchmark in the package: coupled electric drives, two cascaded tanks, ...
    part : {"train", "test"}
        Part of the split of the benchmark.
    intersample : {"bl", "foh", "zoh"}
        Behaviour of the input between the samples.

    Returns
    -------
    list of TimeSeries
        All records of the part, in the units of the benchmark; the times of each start at zero.

    Raises
    ------
    ValueError, FileNotFoundError
        If `name` or `part` is unknown, the package is missing, or there is no network.

    Notes
    -----
    The package makes the split. In each test record it reserves some samples for the initial state (50; 20 for EMPS, 10 for
    CED), which its scores leave out.

    Examples
    --------
    >>> (record,) = benchmark("Cascaded_Tanks", "test")  # doctest: +SKIP
    """
    if not among(name, _SPLIT):
        raise ValueError(f"name must be one of {', '.join(map(repr, _SPLIT))}, but is {name!r}")
    _check(part, Literal["train", "test"])
    data = _downloaded(name, lambda nb: getattr(nb, name)()[part == "test"], "")
    records = data if isinstance(data, tuple | list) else [data]
    return [_record(np.asarray(d.u), np.asarray(d.y), 1 / float(d.sampling_time), intersample) for d in records]


def _named(records: Any, part: str) -> Any:
    """Record whose name contains a part."""
    found = [r for r in records if part in r.name]
    if len(found) != 1:
        raise LookupError(f"{len(found)} of {[r.name for r in records]} are called {part}")
    return found[0]


def _check(part: str, parts: Any) -> None:
    if not among(part, get_args(parts)):
        raise ValueError(f"part must be one of {', '.join(map(repr, get_args(parts)))}, but is {part!r}")


def _record(u: NDArray[Any], y: NDArray[Any], fs: float, intersample: InterSample, periodic: bool = False) -> TimeSeries:
    return TimeSeries(np.arange(len(u)) / fs, u, y, intersample=intersample, periodic=periodic)


def _arrays(
    file: str, names: tuple[str, ...], folder: Folder, download: Callable[[Any], Any] | None
) -> tuple[NDArray[Any], ...]:
    """Arrays from the file if a folder is named, else by download."""
    if found := place(folder, "folder") if folder is not None else os.environ.get(FOLDER_VARIABLE):
        path = Path(found) / file
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}; name the folder that holds {file}, or none to download")
        with np.load(path) as arrays:
            return tuple(arrays[name] for name in names)
    remedy = f"pass the folder that holds it, or name the folder in the environment variable {FOLDER_VARIABLE}"
    if download is None:
        raise FileNotFoundError(f"{file} cannot be downloaded; {remedy}")
    data = _downloaded(file, download, f"{remedy}, or ")
    found_arrays = tuple(np.asarray(a) for a in (data if isinstance(data, tuple) else (data.u, data.y)))
    _verify(file, found_arrays, remedy)
    return found_arrays


def _verify(file: str, arrays: tuple[NDArray[Any], ...], remedy: str) -> None:
    """Compare downloaded channels with the check sums of the published record."""
    if file not in _PUBLISHED:
        return
    size, sums = _PUBLISHED[file]
    wrong = [f"{len(a)} samples instead of {size}" for a in arrays if a.shape != (size,)][:1]
    if not wrong:
        weights = np.cos(np.arange(size) ** 2 / 7)
        for i, (a, (norm, weighted)) in enumerate(zip(arrays, sums, strict=True)):
            error = max(abs(float(np.linalg.norm(a)) - norm), abs(float(weights @ a) - weighted)) / norm
            if not error <= _CHECKED:
                wrong.append(f"channel {i} ({'input' if i == 0 else 'output'}) is off by {error:.2g} of its norm")
    if wrong:
        raise ValueError(
            f"the download in place of {file} is not the published record: {'; '.join(wrong)}. Delete what "
            f"nonlinear_benchmarks keeps and download it again; or {remedy}"
        )


def _downloaded(what: str, download: Callable[[Any], Any], remedy: str) -> Any:
    """Data from the optional package, or an error with the remedy."""
    try:
        package = import_module("nonlinear_benchmarks")
    except ImportError as error:
        raise FileNotFoundError(
            f"{what} is in no known folder; {remedy}install nonlinear_benchmarks to download the record"
        ) from error
    try:
        return download(package)
    except Exception as error:  # the package raises whatever its download ran into
        raise FileNotFoundError(f"{what} could not be downloaded ({error}); {remedy}try again with a network") from error
