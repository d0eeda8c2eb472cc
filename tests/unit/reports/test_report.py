"""What a report says of the records it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from support.tiny import IDATA, RECORD, T, model


def written(path: Path, validation: Any, **options: Any) -> str:
    options = {"units": {}, "progressbar": False, **options}
    return sid.report(model(), IDATA, RECORD, validation=validation, path=path / "r.html", **options).read_text()


@pytest.mark.usefixtures("unrendered")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_record_of_the_fit_validates_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    new = sid.TimeSeries(T, None, np.exp(-T) + 0.05 * rng.standard_normal(20))
    page = written(tmp_path, new)
    assert "a record that the fit has not seen" in page and "used for the fit" not in page
    for same in (RECORD, RECORD[10:].replace(t=T[:10])):
        page = written(tmp_path, sid.Validation(same, x0={"level": float(same.output_matrix[0, 0])}))
        assert "Record of validation: this record was used for the fit, and validates nothing." in page
        assert "On a record that the fit has not seen" not in page and "on the record of the fit" in page
    both = written(tmp_path, [new, RECORD])
    assert "Record of validation 2: this record was used" in both and "on a record that the fit has not seen" in both
    longer = np.r_[RECORD.output_matrix[:, 0], new.output_matrix[:, 0]]
    page = written(tmp_path, sid.TimeSeries(np.arange(40) / 10, None, longer))
    assert "20 of its 40 samples were used for the fit, and validate nothing. Leave them out." in page
