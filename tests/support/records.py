"""Where the files of the benchmark records lie."""

from __future__ import annotations

import os
from pathlib import Path

#: The folder that ``PM_SYSID_DATA`` names, or ``shared/data`` beside the repository.
FOLDER = Path(os.environ.get("PM_SYSID_DATA") or Path(__file__).parents[3] / "shared" / "data")
