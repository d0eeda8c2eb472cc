"""How records come out of tables and files: class methods of a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from pm_sysid.records.csv_mat import (
    PathLike,
    TextFormat,
    by_channel,
    called,
    csv_columns,
    mat_columns,
    record_arguments,
    wanted,
)
from pm_sysid.records.units import SECONDS
from pm_sysid.records.validation import Names, column, named, pandas_module

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


class Readers:
    """Class methods that read a record; mixed into `TimeSeries`."""

    if TYPE_CHECKING:

        def __init__(self, t: Any, u: Any = None, y: Any = None, **options: Any) -> None: ...

    @classmethod
    def from_csv(
        cls,
        path: PathLike,
        *,
        inputs: Names = None,
        outputs: Names = None,
        time: str | None = None,
        fs: float | None = None,
        scale: Mapping[str, float] | None = None,
        format: TextFormat | None = None,
        **options: Any,
    ) -> Self:
        r"""Read a record from the columns of a text file.

        Parameters
        ----------
        path : path
            The file. Empty lines at its end are no rows.
        inputs, outputs : str, sequence of str or None
            Columns; a name gives `u` or `y` of shape (T,), a sequence (T, n), None no channel. Where neither
            is given, the error lists what is in the file. A unit behind a name in the header, ``z [mm]`` or ``z (mm)``, or in
            a line below it, becomes the unit of the channel ``z``; the column may be asked for with it or without.
        time : str, optional
            Column of the times: seconds (after `scale`), or dates (ISO 8601, or as `TextFormat(dates=...)` says), which become
            seconds from the first one. A header
            that says another unit of time, ``t [ms]``, needs a factor in `scale`.
        fs : float, optional
            Sampling rate in Hz, where there is no column of times; every row is then one sample.
        scale : mapping of str to float, optional
            Factors by column, to SI units: ``{"F": 1e3, "z": 1e-3}`` for kN and mm, which changes the units, too.
        format : TextFormat, optional
            Delimiter, decimal sign, lines of units, and what else is not as usual; by default most of it is found out.
        **options
            ``intersample``, ``periodic``, and ``units`` in place of those of the file.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            If there is no such file or column, a cell is no number, a row is too short or too long; the message names the
            line. As for `TimeSeries`: times must increase, inputs must have no gaps; missing outputs become NaN.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import pm_sysid as sid
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = pathlib.Path(folder.name, "rig.csv")
        >>> _ = file.write_text("t;F;z\ns;kN;mm\n0,00;1,5;0,2\n0,01;2,0;\n0,03;1,0;0,7\n")
        >>> scale = {"F": 1e3, "z": 1e-3}
        >>> format = sid.TextFormat(decimal=",", unit_lines=1)
        >>> sid.TimeSeries.from_csv(
        ...     file, inputs="F", outputs="z", time="t", scale=scale, format=format
        ... )
        TimeSeries: 3 samples, 0.03 s, non-uniform (steps of 0.01 to 0.02 s)
          inputs:  F [N] (band-limited between samples)
          outputs: z [m] (1 missing)
        >>> folder.cleanup()
        """
        names = wanted(inputs, outputs, time, fs)
        text = csv_columns(path, names, time, TextFormat() if format is None else format)
        (table, units, line), short, scale = by_channel(text, scale)
        u, y, clock = (called(name, short) for name in (inputs, outputs, time))
        arguments = record_arguments(table, u, y, clock, fs, scale, units=units)  # type: ignore[arg-type]
        try:
            return cls(**(arguments | options))
        except ValueError as error:
            if not (index := re.search(r"\[(\d+)", str(error))):
                raise
            raise ValueError(f"{error} (line {line + int(index[1])} of {path})") from error

    @classmethod
    def from_mat(
        cls,
        path: PathLike,
        *,
        inputs: Names = None,
        outputs: Names = None,
        time: str | None = None,
        fs: float | str | None = None,
        scale: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Self:
        """Read a record from the variables of a MATLAB file (version 4 to 7).

        Parameters
        ----------
        path : path
            The file.
        inputs, outputs : str, sequence of str or None
            Variables, ``"data.u"`` for the field of a structure (a channel called ``u``). Samples are along the longer
            dimension of a matrix; one of n channels called ``u`` gives the channels ``u1``, ..., ``un``.
        time : str, optional
            Variable of the times in seconds (after `scale`).
        fs : float or str, optional
            Sampling rate in Hz, or the variable that holds it, where there is no variable of times.
        scale : mapping of str to float, optional
            Factors by variable, to SI units.
        **options
            ``intersample``, ``periodic``, ``units``.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            If there is no such file or variable, one that holds no real numbers, or the file is of version 7.3.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import pm_sysid as sid
        >>> from scipy.io import savemat
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = pathlib.Path(folder.name, "rig.mat")
        >>> savemat(file, {"rig": {"F": [1.0, 2.0, 1.0], "z": [0.1, 0.3, 0.2]}, "fs": 100.0})
        >>> record = sid.TimeSeries.from_mat(file, inputs="rig.F", outputs="rig.z", fs="fs")
        >>> record.fs, record.inputs
        (100.0, ('F',))
        >>> folder.cleanup()
        """
        names = wanted(inputs, outputs, time, fs)
        table = mat_columns(path, names)
        if isinstance(fs, str):
            rate = mat_columns(path, [fs])[fs]
            if rate.size != 1:
                raise ValueError(f"the variable {fs!r} of {path} must hold one sampling rate, but has shape {rate.shape}")
            fs = float(rate.item())
        return cls(**(record_arguments(table, inputs, outputs, time, fs, scale, dotted=True) | options))

    @classmethod
    def from_dataframe(
        cls, df: pd.DataFrame, *, inputs: Names, outputs: Names, time: str | None = None, **options: Any
    ) -> Self:
        """Take a record from the columns of a pandas table.

        Parameters
        ----------
        df : pandas.DataFrame
            One row per sample.
        inputs, outputs : str, sequence of str or None
            Columns; a name gives `u` or `y` of shape (T,), a sequence (T, n), None no channel.
        time : str, optional
            Column of the times, by default the index: seconds, or dates or time differences, which become
            seconds from the first one.
        **options
            ``intersample``, ``units`` and ``periodic``; by default what `to_dataframe` left in ``df.attrs`` (``periodic`` for
            as many samples only), or ``"bl"``, none and False.

        Raises
        ------
        ImportError
            If pandas is missing.
        ValueError
            If a column is missing, or the index only counts rows (whole numbers without a name).

        Examples
        --------
        >>> import pandas as pd
        >>> from pm_sysid import TimeSeries
        >>> df = pd.DataFrame({"F": [1.0, 2.0], "z": [0.0, 0.3]}, index=[0.0, 0.1])
        >>> TimeSeries.from_dataframe(df, inputs="F", outputs="z", intersample="foh").fs
        10.0
        """
        pd = pandas_module()
        if not isinstance(df, pd.DataFrame):
            raise TypeError(f"df is {type(df).__name__}; give a pandas.DataFrame")
        # Rows that were left out (dropna, a filter) leave their numbers behind.
        numbers = pd.api.types.is_integer_dtype(df.index.dtype) and df.index.name is None
        if time is None and (isinstance(df.index, pd.RangeIndex) or numbers):
            raise ValueError(
                'the index of df counts rows, not seconds; pass time="column", or set the index (of whole seconds: with a '
                'name, df.index.name = "t")'
            )
        times = df.index if time is None else pd.Index(column(df, time))
        if getattr(times, "tz", None) is not None:
            times = times.tz_convert(None)
        return cls._from_table(df, times.to_numpy(), inputs, outputs, options)

    @classmethod
    def from_xarray(cls, ds: xr.Dataset, *, inputs: Names, outputs: Names, time: str = "time", **options: Any) -> Self:
        """Take a record from the variables of an xarray data set; arguments as for `from_dataframe`.

        Raises
        ------
        ValueError
            If a variable is missing or has its samples along another dimension than the times, or the times are said to be in
            another unit than seconds.

        Examples
        --------
        >>> from pm_sysid import TimeSeries
        >>> record = TimeSeries([0.0, 0.1], [1.0, 2.0], [0.0, 0.3], intersample="zoh")
        >>> TimeSeries.from_xarray(record.to_xarray(), inputs="u", outputs="y").intersample
        'zoh'
        """
        import xarray as xr

        if not isinstance(ds, xr.Dataset):
            raise TypeError(f"ds is {type(ds).__name__}; give an xarray.Dataset")
        clock = column(ds, time)
        unit = clock.attrs.get("units", "")
        if isinstance(unit, str) and (seconds := SECONDS.get(unit)):
            raise ValueError(
                f"the times {time!r} are in {unit}, and times of a record are in seconds; multiply them by {seconds:g}, and "
                f'set ds[{time!r}].attrs["units"] = "s"'
            )
        for name in (*named(inputs, "inputs"), *named(outputs, "outputs")):
            if name in ds and ds[name].dims[:1] != clock.dims:
                raise ValueError(
                    f"the samples of {name!r} are along {ds[name].dims[:1]}, and the times along {clock.dims}; interpolate "
                    "the variable at the times of the others, or transpose it so that its samples come first"
                )
        return cls._from_table(ds, clock.to_numpy(), inputs, outputs, options)

    @classmethod
    def _from_table(cls, table: Any, t: NDArray[Any], inputs: Names, outputs: Names, options: dict[str, Any]) -> Self:
        if t.dtype.kind in "mM":
            t = (t - t[:1]) / np.timedelta64(1, "s")

        def pick(names: Names, argument: str) -> Any:
            if isinstance(names, str):
                return column(table, names)
            return {name: column(table, name) for name in named(names, argument)} or None

        chosen = (*named(inputs, "inputs"), *named(outputs, "outputs"))
        known = table.attrs.get("units") or {
            name: getattr(table[name], "attrs", {}).get("units", "") for name in chosen if name in table
        }
        units = {name: known[name] for name in chosen if isinstance(known.get(name), str)}
        periodic = bool(table.attrs.get("periodic") == len(t))
        options = {"intersample": table.attrs.get("intersample", "bl"), "units": units, "periodic": periodic, **options}
        return cls(t, pick(inputs, "inputs"), pick(outputs, "outputs"), inputs=inputs, outputs=outputs, **options)
