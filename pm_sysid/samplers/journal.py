"""The journal of a Markov chain: its draws so far, from which a chain that was cut off goes on."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pm_sysid.samplers.checkpoint import Checkpoint, Saved, plain

_log = logging.getLogger("pm_sysid")
#: Seconds between two writings: what a kill may cost.
SECONDS = 10.0


class Journal:
    """Draws and statistics of one chain, written now and then, and handed out again when the chain is repeated.

    Chains are told apart by the state their random generators start from: a run with the same seed finds its journals.

    Parameters
    ----------
    folder : path
        Where all chains of a run are kept.
    rng : numpy.random.Generator
        The chain's, at its start; it is taken to where the journal ends once that has been read out.
    identity : mapping
        What two runs must share for one to go on where the other ended.
    columns : sequence of str
        Names of the statistics.
    """

    def __init__(
        self, folder: str | os.PathLike[str], rng: np.random.Generator, identity: Mapping[str, Any], columns: Sequence[str]
    ) -> None:
        self.file, self.rng = Checkpoint(folder, rng), rng
        self.identity, self.columns = plain(dict(identity)), list(columns)
        self.rows: list[np.ndarray] = []
        self.read = 0
        self.written = time.monotonic()
        self.saved = self.file.load()
        if self.saved is None:
            return
        other = {k: (self.saved.settings.get(k), v) for k, v in self.identity.items() if self.saved.settings.get(k) != v}
        if other:
            differences = ", ".join(f"{k} was {was!r} and is {now!r}" for k, (was, now) in other.items())
            raise ValueError(f"the checkpoint in {str(folder)!r} is of another run: {differences}; give a new folder.")
        self.rows = list(self.saved.arrays["rows"])

    def repeat(self) -> tuple[np.ndarray, dict[str, float]] | None:
        """Return the next known draw and its statistics, or None at the end."""
        if self.read >= len(self.rows):
            return None
        row = self.rows[self.read]
        self.read += 1
        split = len(row) - len(self.columns)
        return row[:split], dict(zip(self.columns, row[split:].tolist(), strict=True))

    @property
    def resumed(self) -> dict[str, Any] | None:
        """The chain's state where the journal ends, once, when all of it has been repeated; takes the generator there."""
        if self.saved is None or self.read < len(self.rows):
            return None
        self.rng.bit_generator.state = self.saved.generator
        state = {**self.saved.numbers, **{k: v for k, v in self.saved.arrays.items() if k != "rows"}}
        self.saved = None
        return state

    def note(self, q: np.ndarray, statistics: Mapping[str, float], state: Mapping[str, Any], *, last: bool) -> None:
        """Add a draw; write all of them if it is time."""
        self.rows.append(np.concatenate([q, [float(statistics[c]) for c in self.columns]]))
        self.read = len(self.rows)
        if not last and time.monotonic() - self.written < SECONDS:
            return
        arrays = {"rows": np.array(self.rows), **{k: v for k, v in state.items() if isinstance(v, np.ndarray)}}
        numbers = {k: v for k, v in state.items() if k not in arrays}
        try:
            self.file.save(Saved(arrays, numbers, self.identity, [], dict(self.rng.bit_generator.state)))
        except OSError as error:
            _log.warning("The checkpoint in %s could not be written (%s); the chain goes on.", self.file.folder, error)
        self.written = time.monotonic()
