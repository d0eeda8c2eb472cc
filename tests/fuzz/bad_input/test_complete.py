"""Every public name and every one of its arguments is given nonsense somewhere."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import pm_sysid as sid
from support.bad_input import files, plots, records, results, samplers, systems
from support.junk import Entry

TABLES = (files, plots, records, results, samplers, systems)
#: Probes by public name; what is behind a comma tells two of one name apart.
PROBES: dict[str, list[Entry]] = {}
for table in TABLES:
    for key, entry in table.ENTRIES.items():
        PROBES.setdefault(key.split(",")[0], []).append(entry)

#: Names that no user calls: modules, results, a warning.
NOT_CALLED = {"models", "datasets", "PEMResult", "SubstepWarning", "datasets.EmpsController"}
PUBLIC = {name: getattr(sid, name) for name in sid.__all__}
PUBLIC |= {name: getattr(sid.models, name) for name in sid.models.__all__}
PUBLIC |= {f"datasets.{name}": getattr(sid.datasets, name) for name in sid.datasets.__all__}
CALLED = {name: thing for name, thing in PUBLIC.items() if name not in NOT_CALLED}
#: Arguments that are passed on to PyMC, which checks them, or to something that is probed itself.
PASSED_ON = {"settings", "kwargs", "compile_kwargs", "blocked", "unexpected"}


def test_the_names_that_are_not_called_exist() -> None:
    assert NOT_CALLED <= set(PUBLIC)


@pytest.mark.parametrize("name", CALLED)
def test_every_public_name_is_probed(name: str) -> None:
    assert name in PROBES


@pytest.mark.parametrize("name", CALLED)
def test_every_argument_is_probed(name: str) -> None:
    thing: Any = CALLED[name]
    probed = {argument for entry in PROBES[name] for argument in entry.good}
    known = set(inspect.signature(thing).parameters)
    assert known - probed <= PASSED_ON
