"""Scripts outside the package as modules: examples, and what builds the documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load(path: str) -> ModuleType:
    """Import a script of the repository by its path, without a name in ``sys.modules``."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(f"{file.stem}_script", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
