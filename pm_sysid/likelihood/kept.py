"""What is compiled of a model, kept as long as the model lives.

One call of a sampler asks for the same functions several times (of the draws, of searches, of checks), and a second call asks
for all of them again. New data and other steps are seen through the shared variables of the graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_not
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm

#: What a model was made of when functions were compiled; functions of each thread by their names. A function keeps its
#: intermediate results in memory of its own, and two threads must not call it at once.
_KEPT: WeakKeyDictionary[pm.Model, tuple[list[Any], dict[int, dict[Any, Any]]]] = WeakKeyDictionary()


def kept(model: pm.Model, point: Mapping[str, Any]) -> dict[Any, Any]:
    """Everything that was compiled of a model so far, by name; nothing, if it or the shapes of its variables have changed.

    What is put in must not refer to the model, or neither would ever be freed.

    Parameters
    ----------
    model : pm.Model
    point : mapping
        Values of its value variables, by name, for their shapes.
    """
    shapes = [np.shape(point[v.name]) for v in model.value_vars]
    parts = [*model.basic_RVs, *model.rvs_to_values.values(), *model.rvs_to_transforms.values()]
    parts += [*model.potentials, *model.deterministics]
    found = _KEPT.get(model)
    if found is None or len(found[0]) != len(parts) + 1 or found[0][0] != shapes or any(map(is_not, found[0][1:], parts)):
        found = _KEPT[model] = [shapes, *parts], {}
    return found[1].setdefault(get_ident(), {})


def once(model: pm.Model, point: Mapping[str, Any], name: Any, build: Callable[[], Any]) -> Any:
    """What was built under a name for a model, or is now."""
    functions = kept(model, point)
    if name not in functions:
        functions[name] = build()
    return functions[name]
