import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.reports.drawing import equation
from pm_sysid.reports.html import fragment
from pm_sysid.symbolic.latex import symbol_latex


def right_side(function, states=("z", "v"), inputs=("F",), params=("c", "k", "k3", "m")):
    """LaTeX of the last state's derivative, then of choices."""
    rest = len(states) - 1
    system = sid.System(
        lambda t, x, u, p: (*x[1:], function(t, x, u, p)),
        states=states,
        inputs=inputs,
        params=params,
        observe=lambda t, x, dx, u, p: x[0],
    )
    lines = system.equations
    return [lines[rest].split(" = ", 1)[1], *lines[rest + 2 :]]


CASES = {
    "fraction": (
        lambda t, x, u, p: (u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3) / p.m,
        [r"\frac{F - c\,v - k\,z - k_{3}\,z^{3}}{m}"],
    ),
    "bracket": (
        lambda t, x, u, p: -p.k * (x.z - 1.5) + 2 * (x.z + x.v) ** 2,
        [r"-k\,\left(z - 1.5\right) + 2\,\left(z + v\right)^{2}"],
    ),
    "minus a sum": (lambda t, x, u, p: u.F - (p.c + p.k) * x.v - (x.z - x.v), [r"F - \left(c + k\right)\,v - z + v"]),
    "quotient of quotients": (lambda t, x, u, p: p.k * x.z / (p.m / p.c) / p.k3, [r"\frac{k\,z\,c}{m\,k_{3}}"]),
    "thirds": (lambda t, x, u, p: x.z / 3 - 0.25 * x.v, [r"\frac{z}{3} - 0.25\,v"]),
    "powers of ten": (lambda t, x, u, p: 2.5e-7 * x.z + 1e6 * x.v, [r"2.5\cdot 10^{-7}\,z + 10^{6}\,v"]),
    "root and size": (lambda t, x, u, p: pt.sqrt(x.z**2 + 1) - abs(x.v) * x.v, [r"\sqrt{z^{2} + 1} - \left|v\right|\,v"]),
    "functions": (
        lambda t, x, u, p: pm.math.tanh(p.c * x.v) - pm.math.exp(-((x.v / p.k) ** 2)) + pt.maximum(x.z - p.m, 0.0),
        [r"\tanh\left(c\,v\right) - \exp\left(-\frac{v^{2}}{k^{2}}\right) + \max\left(z - m,\, 0\right)"],
    ),
    "free exponent": (lambda t, x, u, p: -(abs(x.v) ** p.k), [r"-\left(\left|v\right|\right)^{k}"]),
    "choice": (
        lambda t, x, u, p: p.c + pt.switch((x.z > 1) & (x.v < 0), x.z, 2.0),
        [
            r"c + s_{1}",
            r"s_{1} = \begin{cases}z & \text{if } z > 1\ \mathrm{and}\ v < 0 \\ 2 & \text{otherwise}\end{cases}",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_equations_read_as_they_were_written(case: str) -> None:
    function, expected = CASES[case]
    assert right_side(function) == expected


@pytest.mark.parametrize(
    "make",
    [sid.models.duffing, sid.models.bouc_wen, sid.models.lugre_oscillator, sid.models.freeplay, sid.models.cascaded_tanks],
)
def test_every_line_of_the_catalogue_can_be_drawn(make) -> None:
    """An unbalanced brace or an unknown command is an error of matplotlib's parser."""
    for line in make().equations:
        assert fragment([equation(line)]).startswith('<p class="equation"><img alt="')


def test_long_choices_can_be_drawn() -> None:
    lines = sid.models.piecewise_oscillator().equations
    assert any("cases" in line for line in lines)
    for line in lines:
        assert fragment([equation(line)]).startswith('<p class="equation"><img alt="')


@pytest.mark.parametrize(
    "name, latex", [("Fc", "F_{c}"), ("beta", r"\beta"), ("k_12", "k_{12}"), ("tau_max", r"\tau_{\mathrm{max}}")]
)
def test_names(name: str, latex: str) -> None:
    assert symbol_latex(name) == latex


def test_a_notebook_shows_a_system_as_equations() -> None:
    text = sid.models.duffing()._repr_latex_()
    assert text.startswith("$$") and text.count("&=") == 3


def test_a_letter_of_the_system_is_not_taken_for_a_choice() -> None:
    lines = right_side(lambda t, x, u, p: p.s_1 + pt.switch(x.z > 0, x.z, 0.0), params=("s_1",))
    assert lines[0] == r"s_{1} + h_{1}"


def test_numbers_keep_six_digits() -> None:
    (line,) = right_side(lambda t, x, u, p: np.pi * x.z)
    assert line == r"3.14159\,z"
