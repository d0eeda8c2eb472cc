"""Which modules a system and a record pass through from ``ODEFilter(...)`` to the compiled likelihood.

Every call of a function of the package is looked at. A module *receives* an object if one of its functions has it as an
argument, alone or in a list or tuple, or is a method of the object (``self``). The path is the list of these modules in the
order of the calls; calls that follow each other in one module are one stop. A module is *re-entered* when the path comes
back to it after a stop elsewhere: a system that is handed from A to B, from B to A and to B again makes two re-entries. The
second pair of numbers leaves out the module of the object's class: there it is only asked for what it holds.

Run: ``uv run benchmarks/data_flow.py [--calls]``, or with ``PYTHONPATH`` set to another checkout. The script uses public
names only, so that it can compare versions of any layout.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pymc as pm

import pm_sysid as sid

ROOT = Path(sid.__file__).parent
VARIABLE_ARGUMENTS, KEYWORDS = 0x04, 0x08  # flags of a code object: the function takes *args, **kwargs


def build() -> tuple[pm.Model, Any, Any]:
    """Build a small system and a record of it, inside a model with priors."""
    t = np.arange(40) / 10
    return pm.Model(), sid.models.duffing(), sid.TimeSeries(t, np.sin(t), np.cos(t))


def trace(objects: dict[str, Any]) -> tuple[dict[str, list[tuple[str, str]]], Any]:
    """Return the calls that receive each object, as (module, function), and the function that starts and stops the trace."""
    calls: dict[str, list[tuple[str, str]]] = {name: [] for name in objects}

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(ROOT)):
            return
        code, here = frame.f_code, frame.f_locals
        n = code.co_argcount + code.co_kwonlyargcount
        n += bool(code.co_flags & VARIABLE_ARGUMENTS) + bool(code.co_flags & KEYWORDS)
        given = [here[name] for name in code.co_varnames[:n] if name in here]
        given += [item for value in given if type(value) in (list, tuple) for item in value]
        module = ".".join(Path(code.co_filename).relative_to(ROOT).with_suffix("").parts)
        for name, wanted in objects.items():
            if any(value is wanted for value in given):
                calls[name].append((module, code.co_qualname))

    return calls, look


def main() -> None:
    """Trace one construction and one compilation, and print the paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="print the functions, too")
    options = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    model, system, record = build()
    with model:
        params = {name: pm.HalfNormal(name, 3.0) for name in ("m", "c", "k", "k3")}
        noise = pm.HalfNormal("noise", 0.1)
        objects = {"system": system, "record": record}
        calls, look = trace(objects)
        sys.setprofile(look)
        try:
            sid.ODEFilter("y", system, record, params, noise=noise)
            model.compile_logp()
        finally:
            sys.setprofile(None)
    print(f"package: {ROOT}")
    homes = {name: type(value).__module__.removeprefix("pm_sysid.") for name, value in objects.items()}
    for name, found in calls.items():
        path = [module for module, _ in groupby(module for module, _ in found)]
        stops = Counter(path)
        print(f"\n{name}: {len(stops)} modules, {len(path) - len(stops)} re-entries, {len(found)} calls")
        handed = [module for module, _ in groupby(m for m, _ in found if m != homes[name])]
        print(f"without the module of its own class: {len(set(handed))} modules, {len(handed) - len(set(handed))} re-entries")
        for module, group in groupby(found, key=lambda call: call[0]):
            functions = [function for _, function in group]
            print(f"  {module}" + (f": {', '.join(dict.fromkeys(functions))}" if options.calls else ""))
        again = {module: n for module, n in stops.items() if n > 1}
        print(f"  visited more than once: {again or 'none'}")


if __name__ == "__main__":
    main()
