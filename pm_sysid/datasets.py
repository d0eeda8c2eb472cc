"""Benchmark records of nonlinear system identification, from local files or by download.

Each loader reads its ``.npz`` file from `folder`, or from the folder named by the environment variable ``PM_SYSID_DATA``.
Without either it downloads the record through the optional package ``nonlinear_benchmarks``, which shows its progress and
keeps the download. Downloaded records are compared with check sums of the published records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from pm_sysid.arguments import among, number, place, shown, text, whole
from pm_sysid.records.metrics import rmse
from pm_sysid.records.timeseries import InterSample, TimeSeries
from pm_sysid.records.validation import real

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Benchmark", "EmpsController", "benchmark", "bouc_wen", "cascaded_tanks", "emps", "emps_controller", "f16", "silverbox",
]  # fmt: skip


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


type Folder = str | os.PathLike[str] | None

FOLDER_VARIABLE = "PM_SYSID_DATA"
EMPS_FORCE_PER_VOLT = 35.15065188248547  # drive gain of the EMPS benchmark, N/V

SilverboxPart = Literal["train", "arrow", "full", "multisine_train", "multisine_test", "arrow_full", "arrow_no_extrapolation"]
BoucWenPart = Literal["train", "test_multisine", "test_sinesweep"]
EmpsPart = Literal["train", "test"]
TanksPart = Literal["train", "test"]
F16Part = Literal["full", "steady"]
BenchmarkName = Literal[
    "Silverbox", "BoucWen", "EMPS", "Cascaded_Tanks", "F16", "CED", "ParWH", "WienerHammerBenchMark"
]  # fmt: skip

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
    "cascaded_tanks.npz": (
        1024,
        [(95.1375846, -46.4189185), (191.61208, -13.6721951), (95.1375846, 1.01343988), (195.473274, -28.4689712)],
    ),
    "emps_train.npz": (24841, [(242.591257, 238.65912), (23.4573007, -15.3634831)]),
    "emps_test_pulses.npz": (24841, [(262.096245, 254.937573), (23.4658256, -15.3642664)]),
    "f16_fullmsine_level1.npz": (
        73728,
        [(3357.42792, 2925.8569), (66.1591698, 37.9021043), (105.078064, 61.3074669), (97.6382364, 48.6161994)],
    ),
}
#: Tolerance of a check sum relative to the norm: text of seven digits passes, one sample wrong by 0.04 % of the rms does not.
_CHECKED = 1e-6

#: Benchmarks that only the package ``nonlinear_benchmarks`` has, with the unit of their scores and its size in theirs.
_OF_THE_PACKAGE = {"CED": ("ticks/s", 1.0), "ParWH": ("mV", 1e3), "WienerHammerBenchMark": ("mV", 1e3)}


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


def cascaded_tanks(part: TanksPart = "train", folder: Folder = None, intersample: InterSample = "zoh") -> TimeSeries:
    """Two tanks one above the other that overflow, with a sensor that ends at 10 V; 0.25 Hz.

    Parameters
    ----------
    part : {"train", "test"}
        The estimation or the validation record (1,024 samples each). The levels at their first samples are unknown, and those
        of the two records are meant to be the same.
    folder : path, optional
        Folder with ``cascaded_tanks.npz``.
    intersample : {"zoh", "foh", "bl"}
        Behaviour of the input between the samples: the voltage of the pump is held.

    Returns
    -------
    TimeSeries
        Voltage of the pump and of the level sensor of the lower tank, in V.

    Raises
    ------
    ValueError, FileNotFoundError
        If `part` is unknown, or there is neither a file nor a way to download it.

    References
    ----------
    M. Schoukens, P. Mattsson, T. Wigren and J.P. Noel, "Cascaded tanks benchmark combining soft and hard nonlinearities",
    Workshop on Nonlinear System Identification Benchmarks, Brussels, 2016.

    Examples
    --------
    >>> len(cascaded_tanks("test"))  # doctest: +SKIP
    1024
    """
    _check(part, TanksPart)

    def download(nb: Any) -> tuple[NDArray[Any], ...]:
        first, second = nb.Cascaded_Tanks(train_test_split=False)
        return first.u, first.y, second.u, second.y

    names = ("train_u_V", "train_y_V", "test_u_V", "test_y_V")
    arrays = _arrays("cascaded_tanks.npz", names, folder, download)
    u, y = arrays[:2] if part == "train" else arrays[2:]
    return _record(u, y, 0.25, intersample)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A benchmark with its official split: what a model may be made from, and what it is scored on.

    Parameters
    ----------
    name : str
        Name of the benchmark.
    train : tuple of TimeSeries
        Records from which a model is made and chosen; a list becomes a tuple.
    test : mapping of str to TimeSeries
        Test records by name. Of their outputs a model may see the first `window` samples. The mapping is copied.
    window : int
        Samples at the beginning of each test record from which the initial state may be found, and which do not count. Zero
        where all count.
    unit : str
        Unit of the scores.
    scale : float
        Scores in this unit that one unit of the outputs makes: 1000 for volts and scores in mV. Positive.

    Raises
    ------
    TypeError
        If an argument is of another kind: `train` no sequence and `test` no mapping of records, say.
    ValueError
        If there is no record, `window` is no whole number or negative, an output of a test has no measured sample after the
        window, or `scale` is not positive.

    Examples
    --------
    >>> record = TimeSeries([0.0, 0.1, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 2.0])
    >>> Benchmark("ramp", (record,), {"the same": record}, window=1, unit="mV", scale=1e3)
    Benchmark 'ramp': 1 training record (3 samples), scored in mV
      test 'the same': 3 samples, the first 1 of them for the initial state
    """

    name: str
    train: tuple[TimeSeries, ...]
    test: Mapping[str, TimeSeries]
    window: int
    unit: str
    scale: float

    def __post_init__(self) -> None:
        text(self.name, "name")
        text(self.unit, "unit")
        if not isinstance(self.train, tuple | list) or not all(isinstance(r, TimeSeries) for r in self.train):
            raise TypeError(f"train is {_kinds(self.train)}; give a tuple of TimeSeries, also where there is one: (record,).")
        if not isinstance(self.test, Mapping) or not all(isinstance(r, TimeSeries) for r in self.test.values()):
            raise TypeError(f'test is {_kinds(self.test)}; give TimeSeries by name: {{"test": record}}.')
        if not self.train or not self.test:
            raise ValueError(f"{'test' if self.train else 'train'} has no record; give at least one TimeSeries.")
        for name in self.test:
            text(name, "a name in test")
        if not whole(self.window, 0):
            raise ValueError(f"window is {shown(self.window)}; give a whole number of samples, 0 where every sample counts.")
        if number(self.scale, "scale", "give a positive number") <= 0:
            raise ValueError(f"scale is {shown(self.scale)}; give a positive number.")
        for name, record in self.test.items():
            if not record.outputs:
                raise ValueError(f"test[{name!r}] has no output; give a record with the outputs that are scored.")
            if len(record) <= self.window:
                raise ValueError(
                    f"window is {self.window}, but test[{name!r}] has {len(record)} samples, so that none would count; give a "
                    "smaller window or a longer record."
                )
            for output, y in zip(record.outputs, record.output_matrix[self.window :].T, strict=True):
                if np.isnan(y).all():
                    raise ValueError(
                        f"test[{name!r}] has no measured sample of {output} after the first {self.window} (window); give a "
                        "smaller window, or a record without this output."
                    )
        object.__setattr__(self, "train", tuple(self.train))
        object.__setattr__(self, "test", dict(self.test))

    def __repr__(self) -> str:
        many = "record" if len(self.train) == 1 else "records"
        lengths = ", ".join(str(len(r)) for r in self.train)
        head = f"Benchmark {self.name!r}: {len(self.train)} training {many} ({lengths} samples), scored in {self.unit}"
        first = f", the first {self.window} of them for the initial state" if self.window else ""
        return "\n".join([head, *(f"  test {name!r}: {len(r)} samples{first}" for name, r in self.test.items())])


def _kinds(given: Any) -> str:
    """Type of a container and of what it holds that is no record, for messages."""
    held = list(given.values()) if isinstance(given, Mapping) else given if isinstance(given, tuple | list) else []
    wrong = [type(v).__name__ for v in held if not isinstance(v, TimeSeries)]
    return type(given).__name__ + (f" with {wrong[0]}" if wrong else "")


def benchmark(name: BenchmarkName, folder: Folder = None, intersample: InterSample | None = None) -> Benchmark:
    """Training and test records of a benchmark by its official split.

    Parameters
    ----------
    name : {"Silverbox", "BoucWen", "EMPS", "Cascaded_Tanks", "F16", "CED", "ParWH", "WienerHammerBenchMark"}
        Name of the benchmark in the package ``nonlinear_benchmarks``. The last three come from this package alone.
    folder : path, optional
        Folder with the records, as for the loaders of the single records. The last three benchmarks are not read from files.
    intersample : {"bl", "foh", "zoh"}, optional
        Behaviour of the inputs between the samples. By default held for EMPS and the tanks, where a digital device drives, and
        band-limited for the others.

    Returns
    -------
    Benchmark
        Records, window for the initial state, and unit of the scores; :func:`score` scores predictions.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is no such benchmark, there is neither a file nor a way to download it, or `folder` is given for one of the
        last three.

    Notes
    -----
    Windows: 50 samples, 20 for EMPS, and none for Bouc-Wen, whose rules have none: its sine sweep begins at rest, and its
    multisine is one period of a steady state. Version 1.0.1 of the package has 50 samples for the tanks, its development
    version 5; ``dataclasses.replace(found, window=5)`` gives the latter. The benchmark of Bouc-Wen leaves the training record
    free; this one is a choice. Those of the F-16 are the full multisines of the levels 1, 3, 5 and 7, and the tests those of
    the levels 2, 4 and 6.

    Examples
    --------
    >>> benchmark("Silverbox").window  # doctest: +SKIP
    50
    """
    if not among(name, get_args(BenchmarkName)):
        raise ValueError(f"name must be one of {', '.join(map(repr, get_args(BenchmarkName)))}, but is {shown(name)}")
    if intersample is not None and not among(intersample, get_args(InterSample)):
        raise ValueError(f'intersample must be "zoh", "foh" or "bl", or None, but is {shown(intersample)}')
    if name in _OF_THE_PACKAGE:
        if folder is not None:
            raise ValueError(
                f"folder is {shown(folder)}, but {name} comes from the package nonlinear_benchmarks alone, which keeps its own "
                "download; leave folder out. The result has the records for training and for tests."
            )
        return _of_the_package(name, intersample or "bl")
    smooth, held = intersample or "bl", intersample or "zoh"
    if name == "Silverbox":
        parts: tuple[SilverboxPart, ...] = ("multisine_test", "arrow_full", "arrow_no_extrapolation")
        test: dict[str, TimeSeries] = {part: silverbox(part, folder, smooth) for part in parts}
        return Benchmark(name, (silverbox("multisine_train", folder, smooth),), test, 50, "mV", 1e3)
    if name == "BoucWen":
        test = {part: bouc_wen(f"test_{part}", folder, smooth) for part in ("multisine", "sinesweep")}  # type: ignore[arg-type]
        return Benchmark(name, (bouc_wen("train", folder, smooth),), test, 0, "m", 1.0)
    if name == "EMPS":
        return Benchmark(name, (emps("train", folder, held),), {"pulses": emps("test", folder, held)}, 20, "mm", 1e3)
    if name == "Cascaded_Tanks":
        test = {"validation": cascaded_tanks("test", folder, held)}
        return Benchmark(name, (cascaded_tanks("train", folder, held),), test, 50, "V", 1.0)
    levels = {level: f16(level, "full", folder, smooth) for level in range(1, 8)}
    train = tuple(levels[i] for i in (1, 3, 5, 7))
    return Benchmark(name, train, {f"level {i}": levels[i] for i in (2, 4, 6)}, 50, "m/s^2", 1.0)


def score(benchmark: Benchmark, predictions: Any) -> pd.DataFrame:
    """Score predictions of the test records by the official metric: root mean square error after the window.

    Parameters
    ----------
    benchmark : Benchmark
        Records and rules, from :func:`benchmark`.
    predictions : mapping of str to array (T,) or (T, n_y), or one array
        For each test record, by its name, the simulated outputs of all its samples in units of the record, those of the window
        included. The values in the window do not count and may be NaN. A single array serves if there is one test record.

    Returns
    -------
    pandas.DataFrame
        One row a test and output: columns ``test``, ``output``, ``rmse`` (in `benchmark.unit`), ``samples`` (that counted).

    Raises
    ------
    TypeError
        If `benchmark` is none, or `predictions` are no numbers.
    ValueError
        If tests are missing or unknown, a length or number of outputs differs, or a prediction that counts is not finite.

    Notes
    -----
    Where the package ``nonlinear_benchmarks`` is installed, its own function computes the metric.

    Examples
    --------
    >>> import numpy as np
    >>> record = TimeSeries([0.0, 0.1, 0.2], [1.0, 0.0, 0.0], [0.0, 1.0, 2.0])
    >>> ramp = Benchmark("ramp", (record,), {"again": record}, window=1, unit="mV", scale=1e3)
    >>> score(ramp, {"again": [np.nan, 1.003, 1.996]}).round(3)
        test output   rmse  samples
    0  again      y  3.536        2
    """
    import pandas as pd

    if not isinstance(benchmark, Benchmark):
        raise TypeError(f"benchmark is {shown(benchmark)}; give what pm_sysid.datasets.benchmark(...) returns.")
    if not isinstance(predictions, Mapping):
        if len(benchmark.test) > 1:
            raise ValueError(
                f"predictions is one {type(predictions).__name__}, but {benchmark.name} has the tests {list(benchmark.test)}; "
                "give a dict with the predictions of each."
            )
        predictions = {name: predictions for name in benchmark.test}
    if set(predictions) != set(benchmark.test):
        raise ValueError(f"predictions names the tests {list(predictions)}; give those of each of {list(benchmark.test)}.")
    metric, rows = _official_metric(), []
    for name, record in benchmark.test.items():
        y, run = record.output_matrix, _prediction(name, predictions[name], record, benchmark.window)
        for i, output in enumerate(record.outputs):
            counts = ~np.isnan(y[:, i]) & (np.arange(len(y)) >= benchmark.window)
            error = float(metric(y[counts, i], run[counts, i]))
            rows.append({"test": name, "output": output, "rmse": benchmark.scale * error, "samples": int(counts.sum())})
    return pd.DataFrame(rows)


def _prediction(name: str, given: Any, record: TimeSeries, window: int) -> NDArray[np.float64]:
    """Predictions of one test record as a matrix (T, n_y) that can be scored."""
    what, shape = f"predictions[{name!r}]", record.output_matrix.shape
    run = real(given, what)
    if run.shape != shape and not (shape[1] == 1 and run.shape == shape[:1]):
        expected = f"({shape[0]},)" if shape[1] == 1 else f"{shape}"
        raise ValueError(
            f"{what} has the shape {run.shape}; give predictions of the shape {expected}: one for every sample of the record, "
            f"the first {window} included."
        )
    run = run.reshape(shape)
    bad = np.argwhere(~np.isfinite(run[window:]))
    if bad.size:
        at = int(bad[0, 0]) + window
        raise ValueError(
            f"{what} has {len(bad)} values that are not finite, the first at sample {at}; a score counts every sample from "
            f"{window} on, so simulate them all."
        )
    return run


def _official_metric() -> Callable[[NDArray[np.float64], NDArray[np.float64]], Any]:
    """Root mean square error: that of the package if it is installed."""
    try:
        return import_module("nonlinear_benchmarks.error_metrics").RMSE  # type: ignore[no-any-return]
    except ImportError:
        return rmse


def _of_the_package(name: str, intersample: InterSample) -> Benchmark:
    """Benchmark that only the package has, by its split and its windows."""
    train, test = (
        part if isinstance(part, tuple | list) else (part,) for part in _downloaded(name, lambda nb: getattr(nb, name)(), "")
    )
    windows = {int(d.state_initialization_window_length) for d in test}
    if len(windows) != 1:
        raise ValueError(f"the tests of {name} have the windows {sorted(windows)}; one was expected: read them one by one")

    def record(d: Any) -> TimeSeries:
        return _record(np.asarray(d.u), np.asarray(d.y), 1 / float(d.sampling_time), intersample)

    tests = {str(d.name or f"test {i + 1}"): record(d) for i, d in enumerate(test)}
    if len(tests) != len(test):
        tests = {f"test {i + 1}": record(d) for i, d in enumerate(test)}
    return Benchmark(name, tuple(map(record, train)), tests, windows.pop(), *_OF_THE_PACKAGE[name])


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
