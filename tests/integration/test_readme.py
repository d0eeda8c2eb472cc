import re
from pathlib import Path

import matplotlib
import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.filterwarnings("ignore:We recommend running at least 4 chains")
def test_the_readme_example_runs_as_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    code = code.replace("pm.sample(300,", "pm.sample(300, cores=1, progressbar=False, random_seed=1,")
    names = {}
    exec(code, names)
    fit = float(capsys.readouterr().out.split()[0])
    assert 95.0 < fit < 100.0
    summary = names["idata"].posterior.to_dataset()
    for name, value in names["truth"].items():
        draws = summary[name]
        assert abs(float(draws.mean()) - value) < 4 * float(draws.std()), name
    page = (tmp_path / "report.html").read_text()
    assert "problem</b>" not in page and page.count('<li class="good">') >= 6
