"""The log of a Markov chain: its draws so far, from which a chain that was cut off goes on."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pm_sysid.storage import Checkpoint, Saved, plain

_log = logging.getLogger("pm_sysid")
#: Seconds between two writings: what a kill may cost.
SECONDS = 10.0


class DrawLog:
    """Draws and statistics of one chain, written now and then, and handed out again when the chain is repeated.

    Chains are told apart by the state their random generators start from: a run with the same seed finds its logs.

    Parameters
    ----------
    folder : path
        Where all chains of a run are kept.
    rng : numpy.random.Generator
        The chain's, at its start; it is taken to where the log ends once that has been read out.
    identity : mapping
        What two runs must share for one to go on where the other ended.
    statistics : sequence of str
        Names of the statistics of a draw.
    """

    def __init__(
        self, folder: str | os.PathLike[str], rng: np.random.Generator, identity: Mapping[str, Any], statistics: Sequence[str]
    ) -> None:
        self.file, self.rng, self.identity = Checkpoint(folder, rng), rng, plain(dict(identity))
        self.draws: list[np.ndarray] = []
        self.statistics: dict[str, list[float]] = {name: [] for name in statistics}
        self.read = 0
        self.written = time.monotonic()
        self.saved = self.file.load(self.identity)
        if self.saved is None:
            return
        arrays = self.saved.arrays
        try:
            self.draws = list(arrays["draws"])
            self.statistics = {name: arrays[f"statistic_{name}"].tolist() for name in self.statistics}
        except KeyError as error:
            raise ValueError(f"the checkpoint in {str(folder)!r} lacks {error}; give a new folder.") from error

    def repeat(self) -> tuple[np.ndarray, dict[str, float]] | None:
        """Return the next known draw and its statistics, or None at the end."""
        if self.read >= len(self.draws):
            return None
        i, self.read = self.read, self.read + 1
        return self.draws[i], {name: column[i] for name, column in self.statistics.items()}

    @property
    def resumed(self) -> Saved | None:
        """What was kept of the chain's state where the log ends, once, when all of it has been repeated.

        Takes the generator there.
        """
        if self.saved is None or self.read < len(self.draws):
            return None
        saved, self.saved = self.saved, None
        self.rng.bit_generator.state = saved.generator
        return saved

    def note(self, q: np.ndarray, statistics: Mapping[str, float], state: Mapping[str, Any], *, last: bool) -> None:
        """Add a draw; write all of them, with the chain's state, if it is time."""
        self.draws.append(q)
        for name, column in self.statistics.items():
            column.append(float(statistics[name]))
        self.read = len(self.draws)
        if not last and time.monotonic() - self.written < SECONDS:
            return
        arrays = {k: v for k, v in state.items() if isinstance(v, np.ndarray)}
        numbers = {k: v for k, v in state.items() if k not in arrays}
        arrays["draws"] = np.array(self.draws)
        arrays |= {f"statistic_{name}": np.array(column) for name, column in self.statistics.items()}
        try:
            self.file.save(Saved(arrays, numbers, self.identity, [], dict(self.rng.bit_generator.state)))
        except OSError as error:
            _log.warning("The checkpoint in %s could not be written (%s); the chain goes on.", self.file.folder, error)
        self.written = time.monotonic()
        if last:
            self.file.release()
