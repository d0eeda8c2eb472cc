"""The log posterior of a model whose filters follow the record more loosely than the model says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.likelihood.filter_view import FilterView, filter_names, filter_view


def loose_filters(model: pm.Model) -> list[FilterView]:
    """Filters whose diffusion is a number of the graph: of a dynamic one it is made anew in every step."""
    views = [filter_view(name, model) for name in filter_names(model)]
    return [view for view in views if not view.problem.form.dynamic]


def calibrated_diffusions(views: Sequence[FilterView]) -> list[Variable]:
    """What the equations alone say of the diffusion of each filter's chains, as graphs of value variables."""
    graphs = [view.problem.calibrate(view.unknowns, view.data) for view in views]
    result: list[Variable] = views[0].model.replace_rvs_by_values(graphs)
    return result


def tempered_logp(model: pm.Model, views: Sequence[FilterView], added: Sequence[Any]) -> Any:
    """Log posterior with a diffusion for each chain ``added`` to that of the model (in squares); zero is the model itself."""
    names = {view.name for view in views}
    others = [*model.free_RVs, *model.potentials, *(v for v in model.observed_RVs if v.name not in names)]
    total = model.logp(vars=others)
    terms = []
    for view, more in zip(views, added, strict=True):
        problem = view.problem
        own = problem.calibrate(view.unknowns, view.data) if problem.calibrated else view.unknowns.diffusion
        loose = view.unknowns._replace(diffusion=pt.sqrt(own**2 + more**2))
        outputs, _ = replace(problem, calibrated=False).run(view.y, loose, view.data)
        terms.append(outputs.sum())
    return (
        total + pt.add(*model.replace_rvs_by_values(terms)) if len(terms) > 1 else total + model.replace_rvs_by_values(terms)[0]
    )
