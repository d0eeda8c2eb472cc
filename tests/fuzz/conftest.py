"""Fuzz tests run in a temporary folder: text that is made up may be taken for the path of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytensor
import pytest
from hypothesis.internal.conjecture import providers

from support.scripts import ROOT


def listing(*folders: Path) -> set[str]:
    """Paths of the files in folders, without the caches of tools."""
    return {entry.path for folder in folders for entry in os.scandir(folder) if entry.name[0] not in "._"}


@pytest.fixture(autouse=True)
def same_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples are the same whatever ran before: Hypothesis mixes in numbers from the sources of loaded modules."""
    if hasattr(providers, "_get_local_constants"):
        monkeypatch.setattr(providers, "_get_local_constants", providers.Constants)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test in an empty folder; it fails if a file appears in the repository or in the folder pytest was started in."""
    watched = {ROOT, request.config.invocation_params.dir}
    before = listing(*watched)
    monkeypatch.chdir(tmp_path)
    yield
    written = listing(*watched) - before
    assert not written, f"written outside the temporary folder: {sorted(written)}"


@pytest.fixture(scope="module")
def interpreted() -> Iterator[None]:
    """Graphs are interpreted: compiling one takes longer than running it a few times."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield
