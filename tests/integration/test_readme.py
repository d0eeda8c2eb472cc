import re
from pathlib import Path

import matplotlib
import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_readme_example_runs_as_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    code = code.replace("sid.sample()", "sid.sample(draws=300, tune=200, chains=4, cores=1, progressbar=False, random_seed=1)")
    assert "random_seed=1" in code
    names = {}
    exec(code, names)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.strip()]  # bars leave empty lines
    verdict, fit = printed[:2]
    assert verdict == "Nothing is known against these draws."
    assert 95.0 < float(fit) < 100.0
    summary = names["idata"].posterior.to_dataset()
    for name, value in names["truth"].items():
        draws = summary[name]
        assert abs(float(draws.mean()) - value) < 4 * float(draws.std()), name
    page = (tmp_path / "report.html").read_text()
    assert "problem</b>" not in page and page.count('<li class="good">') >= 6
