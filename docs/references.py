"""References of the documentation: one list, whose entries are linked wherever a page or a docstring cites them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import quote


class Reference(NamedTuple):
    """A publication: names and year as it is cited, and where it is found; ``doi`` is empty where none is known."""

    names: str
    year: int
    title: str
    place: str
    doi: str = ""

    @property
    def url(self) -> str:
        """Address that does not change."""
        return f"https://doi.org/{quote(self.doi, safe='/')}" if self.doi else ""

    @property
    def cited(self) -> re.Pattern[str]:
        """Names and year, in one line or two: "Names (year)" or "Names year"; also "First et al." of several names."""
        first = self.names.split(",")[0].split(" and ")[0]
        forms = dict.fromkeys([self.names, *([f"{first} et al."] if first != self.names else [])])
        names = "|".join(re.escape(form).replace(r"\ ", r"\s+") for form in forms)
        return re.compile(rf"(?<![\w\[`])(?:{names}),?\s+(?:\({self.year}\)|{self.year}(?![\w-]))")


#: In the order of names. A DOI stands here only if it was found beside the title elsewhere.
REFERENCES = (
    Reference(
        "Armstrong-Helouvry, Dupont and Canudas de Wit", 1994,
        "A survey of models, analysis tools and compensation methods for the control of machines with friction",
        "Automatica 30(7), 1083-1138", "10.1016/0005-1098(94)90209-7",
    ),
    Reference(
        "Besag and Clifford", 1991, "Sequential Monte Carlo p-values", "Biometrika 78(2), 301-304", "10.1093/biomet/78.2.301",
    ),
    Reference(
        "Bierman", 1977, "Factorization methods for discrete sequential estimation", "Academic Press",
    ),
    Reference(
        "Bosch, Hennig and Tronarp", 2021, "Calibrated adaptive probabilistic ODE solvers", "AISTATS, PMLR 130",
        "10.48550/arXiv.2012.08202",
    ),
    Reference(
        "Bosch, Tronarp and Hennig", 2022, "Pick-and-mix information operators for probabilistic ODE solvers",
        "AISTATS, PMLR 151", "10.48550/arXiv.2110.10770",
    ),
    Reference(
        "Bürkner, Gabry and Vehtari", 2020, "Approximate leave-future-out cross-validation for Bayesian time series models",
        "Journal of Statistical Computation and Simulation 90(14), 2499-2523", "10.1080/00949655.2020.1783262",
    ),
    Reference(
        "Canudas de Wit, Olsson, Astrom and Lischinsky", 1995, "A new model for control of systems with friction",
        "IEEE Transactions on Automatic Control 40(3), 419-425", "10.1109/9.376053",
    ),
    Reference(
        "Cappé, Guillin, Marin and Robert", 2004, "Population Monte Carlo",
        "Journal of Computational and Graphical Statistics 13(4), 907-929", "10.1198/106186004X12803",
    ),
    Reference(
        "Chen, Wiesel, Eldar and Hero", 2010, "Shrinkage algorithms for MMSE covariance estimation",
        "IEEE Transactions on Signal Processing 58(10), 5016-5029", "10.1109/TSP.2010.2053029",
    ),
    Reference(
        "Chopin", 2002, "A sequential particle filter method for static models", "Biometrika 89(3), 539-552",
        "10.1093/biomet/89.3.539",
    ),
    Reference(
        "Cook, Gelman and Rubin", 2006, "Validation of software for Bayesian models using posterior quantiles",
        "Journal of Computational and Graphical Statistics 15(3), 675-692", "10.1198/106186006X136976",
    ),
    Reference(
        "Cornuet, Marin, Mira and Robert", 2012, "Adaptive multiple importance sampling",
        "Scandinavian Journal of Statistics 39(4), 798-812", "10.1111/j.1467-9469.2011.00756.x",
    ),
    Reference(
        "Dau and Chopin", 2022, "Waste-free sequential Monte Carlo",
        "Journal of the Royal Statistical Society B 84(1), 114-148", "10.1111/rssb.12475",
    ),
    Reference(
        "de Jong", 1991, "The diffuse Kalman filter", "Annals of Statistics 19(2), 1073-1083", "10.1214/aos/1176348139",
    ),
    Reference(
        "Diebold and Mariano", 1995, "Comparing predictive accuracy",
        "Journal of Business and Economic Statistics 13(3), 253-263", "10.1080/07350015.1995.10524599",
    ),
    Reference(
        "Duembgen and Spokoiny", 2001, "Multiscale testing of qualitative hypotheses", "Annals of Statistics 29(1), 124-152",
        "10.1214/aos/996986504",
    ),
    Reference(
        "Durbin and Watson", 1950, "Testing for serial correlation in least squares regression, I", "Biometrika 37, 409-428",
        "10.1093/biomet/37.3-4.409",
    ),
    Reference(
        "Fearnhead and Taylor", 2013, "An adaptive sequential Monte Carlo sampler", "Bayesian Analysis 8(2), 411-438",
        "10.1214/13-BA814",
    ),
    Reference(
        "Fruehwirth-Schnatter", 2004,
        "Estimating marginal likelihoods for mixture and Markov switching models using bridge sampling techniques",
        "Econometrics Journal 7(1), 143-167", "10.1111/j.1368-423X.2004.00125.x",
    ),
    Reference(
        "Geyer", 1992, "Practical Markov chain Monte Carlo", "Statistical Science 7(4), 473-483", "10.1214/ss/1177011137",
    ),
    Reference(
        "Green", 2015,
        "Bayesian system identification of a nonlinear dynamical system using a novel variant of simulated annealing",
        "Mechanical Systems and Signal Processing 52-53, 133-146",
    ),
    Reference(
        "Haario, Saksman and Tamminen", 2001, "An adaptive Metropolis algorithm", "Bernoulli 7(2), 223-242", "10.2307/3318737",
    ),
    Reference(
        "Hairer and Wanner", 1996,
        "Solving ordinary differential equations II: stiff and differential-algebraic problems", "Springer",
        "10.1007/978-3-642-05221-7",
    ),
    Reference(
        "Hartikainen and Sarkka", 2010,
        "Kalman filtering and smoothing solutions to temporal Gaussian process regression models",
        "IEEE Workshop on Machine Learning for Signal Processing, 379-384", "10.1109/MLSP.2010.5589113",
    ),
    Reference(
        "Harville", 1977, "Maximum likelihood approaches to variance component estimation and to related problems",
        "Journal of the American Statistical Association 72(358), 320-338", "10.1080/01621459.1977.10480998",
    ),
    Reference(
        "Haugh", 1976, "Checking the independence of two covariance-stationary time series",
        "Journal of the American Statistical Association 71(354), 378-385", "10.1080/01621459.1976.10480353",
    ),
    Reference(
        "Hu, Li and Peng", 2012, "A comparative study of equivalent circuit models for Li-ion batteries",
        "Journal of Power Sources 198, 359-367", "10.1016/j.jpowsour.2011.10.013",
    ),
    Reference(
        "Hurvich and Tsai", 1989, "Regression and time series model selection in small samples", "Biometrika 76(2), 297-307",
        "10.1093/biomet/76.2.297",
    ),
    Reference(
        "Janot, Gautier and Brunot", 2019, "Data set and reference models of EMPS",
        "Workshop on Nonlinear System Identification Benchmarks",
    ),
    Reference(
        "Jarque and Bera", 1980,
        "Efficient tests for normality, homoscedasticity and serial independence of regression residuals",
        "Economics Letters 6(3), 255-259", "10.1016/0165-1765(80)90024-5",
    ),
    Reference(
        "Julier", 2002, "The scaled unscented transformation", "American Control Conference, 4555-4559",
        "10.1109/ACC.2002.1025369",
    ),
    Reference(
        "Koenker", 1981, "A note on studentizing a test for heteroscedasticity",
        "Journal of Econometrics 17(1), 107-112", "10.1016/0304-4076(81)90062-2",
    ),
    Reference(
        "Krämer and Hennig", 2020, "Stable implementation of probabilistic ODE solvers",
        "Journal of Machine Learning Research 25 (2024)", "10.48550/arXiv.2012.10106",
    ),
    Reference(
        "Lange, Little and Taylor", 1989, "Robust statistical modeling using the t distribution",
        "Journal of the American Statistical Association 84(408), 881-896", "10.1080/01621459.1989.10478852",
    ),
    Reference(
        "LeVeque", 2007, "Finite difference methods for ordinary and partial differential equations", "SIAM",
        "10.1137/1.9780898717839",
    ),
    Reference(
        "Lewis and Overton", 2013, "Nonsmooth optimization via quasi-Newton methods", "Mathematical Programming 141, 135-163",
        "10.1007/s10107-012-0514-2",
    ),
    Reference("Ljung", 1999, "System identification: theory for the user", "2nd edition, Prentice Hall"),
    Reference(
        "Ljung and Box", 1978, "On a measure of lack of fit in time series models", "Biometrika 65(2), 297-303",
        "10.1093/biomet/65.2.297",
    ),
    Reference(
        "Lobato, Nankervis and Savin", 2001, "Testing for autocorrelation using a modified Box-Pierce Q test",
        "International Economic Review 42(1), 187-205", "10.1111/1468-2354.00106",
    ),
    Reference(
        "Longbottom, Champneys and Rogers", 2024,
        "Probabilistic numeric SMC sampling for Bayesian nonlinear system identification in continuous time", "Preprint",
        "10.48550/arXiv.2404.12923",
    ),
    Reference(
        "MacKinnon and White", 1985,
        "Some heteroskedasticity-consistent covariance matrix estimators with improved finite sample properties",
        "Journal of Econometrics 29(3), 305-325", "10.1016/0304-4076(85)90158-7",
    ),
    Reference(
        "Marchenko and Pastur", 1967, "Distribution of eigenvalues for some sets of random matrices",
        "Mathematics of the USSR-Sbornik 1(4), 457-483", "10.1070/SM1967v001n04ABEH001994",
    ),
    Reference(
        "Meng and Wong", 1996, "Simulating ratios of normalizing constants via a simple identity",
        "Statistica Sinica 6, 831-860",
    ),
    Reference(
        "Merkle, Furr and Rabe-Hesketh", 2019,
        "Bayesian comparison of latent variable models: conditional versus marginal likelihoods",
        "Psychometrika 84(3), 802-829", "10.1007/s11336-019-09679-0",
    ),
    Reference(
        "Modrak et al.", 2023, "Simulation-based calibration checking: the choice of test quantities shapes sensitivity",
        "Bayesian Analysis", "10.1214/23-BA1404",
    ),
    Reference(
        "Nayek et al.", 2023,
        "Identification of piecewise-linear mechanical oscillators via Bayesian model selection and parameter estimation",
        "Mechanical Systems and Signal Processing 196, 110300", "10.1016/j.ymssp.2023.110300",
    ),
    Reference(
        "Newey and West", 1987,
        "A simple, positive semi-definite, heteroskedasticity and autocorrelation consistent covariance matrix",
        "Econometrica 55(3), 703-708", "10.2307/1913610",
    ),
    Reference(
        "Owen and Zhou", 2000, "Safe and effective importance sampling",
        "Journal of the American Statistical Association 95(449), 135-143", "10.1080/01621459.2000.10473909",
    ),
    Reference(
        "Piironen and Vehtari", 2017,
        "Sparsity information and regularization in the horseshoe and other shrinkage priors",
        "Electronic Journal of Statistics 11(2), 5018-5051", "10.1214/17-EJS1337SI",
    ),
    Reference(
        "Raftery and Bao", 2010,
        "Estimating and projecting trends in HIV/AIDS generalized epidemics using incremental mixture importance sampling",
        "Biometrics 66(4), 1162-1173", "10.1111/j.1541-0420.2010.01399.x",
    ),
    Reference(
        "Rao", 1948, "Large sample tests of statistical hypotheses concerning several parameters with applications to "
        "problems of estimation",
        "Mathematical Proceedings of the Cambridge Philosophical Society 44(1), 50-57", "10.1017/S0305004100023987",
    ),
    Reference(
        "Rauch, Tung and Striebel", 1965, "Maximum likelihood estimates of linear dynamic systems",
        "AIAA Journal 3(8), 1445-1450", "10.2514/3.3166",
    ),
    Reference(
        "Rinnooy Kan and Timmer", 1987, "Stochastic global optimization methods part II: multi level methods",
        "Mathematical Programming 39, 57-78", "10.1007/BF02592071",
    ),
    Reference(
        "Säilynoja, Bürkner and Vehtari", 2022,
        "Graphical test for discrete uniformity and its applications in goodness-of-fit evaluation and multiple sample "
        "comparison", "Statistics and Computing 32, 32", "10.1007/s11222-022-10090-6",
    ),
    Reference(
        "Särkkä", 2013, "Bayesian filtering and smoothing", "Cambridge University Press", "10.1017/CBO9781139344203",
    ),
    Reference(
        "Segel and Slemrod", 1989, "The quasi-steady-state assumption: a case study in perturbation",
        "SIAM Review 31(3), 446-477", "10.1137/1031091",
    ),
    Reference(
        "Sivula, Magnusson, Matamoros and Vehtari", 2025,
        "Uncertainty in Bayesian leave-one-out cross-validation based model comparison", "Bayesian Analysis",
        "10.1214/24-BA1453",
    ),
    Reference(
        "Solin and Sarkka", 2014, "Explicit link between periodic covariance functions and state space models",
        "AISTATS, PMLR 33, 904-912",
    ),
    Reference(
        "Solin and Sarkka", 2020, "Hilbert space methods for reduced-rank Gaussian process regression",
        "Statistics and Computing 30, 419-446", "10.1007/s11222-019-09886-w",
    ),
    Reference(
        "Spiegelhalter, Best, Carlin and van der Linde", 2002, "Bayesian measures of model complexity and fit",
        "Journal of the Royal Statistical Society B 64(4), 583-639", "10.1111/1467-9868.00353",
    ),
    Reference(
        "Steinebach", 2023,
        "Construction of Rosenbrock-Wanner method Rodas5P and numerical benchmarks within the Julia Differential Equations "
        "package", "BIT Numerical Mathematics 63, 27", "10.1007/s10543-023-00967-x",
    ),
    Reference(
        "Talts, Betancourt, Simpson, Vehtari and Gelman", 2018,
        "Validating Bayesian inference algorithms with simulation-based calibration", "Preprint", "10.48550/arXiv.1804.06788",
    ),
    Reference(
        "ter Braak and Vrugt", 2008, "Differential evolution Markov chain with snooker updater and fewer chains",
        "Statistics and Computing 18, 435-446", "10.1007/s11222-008-9104-9",
    ),
    Reference(
        "Torrie and Valleau", 1977,
        "Nonphysical sampling distributions in Monte Carlo free-energy estimation: umbrella sampling",
        "Journal of Computational Physics 23(2), 187-199", "10.1016/0021-9991(77)90121-8",
    ),
    Reference(
        "Tronarp, Bosch and Hennig", 2022, "Fenrir: Physics-enhanced regression for initial value problems", "ICML, PMLR 162",
        "10.48550/arXiv.2202.01287",
    ),
    Reference(
        "Tronarp, Kersting, Särkkä and Hennig", 2019,
        "Probabilistic solutions to ordinary differential equations as nonlinear Bayesian filtering: a new perspective",
        "Statistics and Computing 29, 1297-1315", "10.1007/s11222-019-09900-1",
    ),
    Reference(
        "Vehtari et al.", 2021,
        "Rank-normalization, folding, and localization: an improved R-hat for assessing convergence of MCMC",
        "Bayesian Analysis 16(2), 667-718", "10.1214/20-BA1221",
    ),
    Reference(
        "Vehtari et al.", 2024, "Pareto smoothed importance sampling", "Journal of Machine Learning Research 25(72), 1-58",
        "10.48550/arXiv.1507.02646",
    ),
    Reference(
        "Vehtari, Gelman and Gabry", 2017,
        "Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC",
        "Statistics and Computing 27, 1413-1432", "10.1007/s11222-016-9696-4",
    ),
    Reference(
        "Vihola", 2012, "Robust adaptive Metropolis algorithm with coerced acceptance rate",
        "Statistics and Computing 22, 997-1008", "10.1007/s11222-011-9269-5",
    ),
    Reference(
        "Vrugt et al.", 2009,
        "Accelerating Markov chain Monte Carlo simulation by differential evolution with self-adaptive randomized subspace "
        "sampling", "International Journal of Nonlinear Sciences and Numerical Simulation 10(3), 273-290",
        "10.1515/IJNSNS.2009.10.3.273",
    ),
    Reference(
        "Wan and van der Merwe", 2000, "The unscented Kalman filter for nonlinear estimation",
        "IEEE Adaptive Systems for Signal Processing, Communications, and Control Symposium, 153-158",
        "10.1109/ASSPCC.2000.882463",
    ),
    Reference(
        "Watanabe", 2010,
        "Asymptotic equivalence of Bayes cross validation and widely applicable information criterion in singular learning "
        "theory", "Journal of Machine Learning Research 11, 3571-3594", "10.48550/arXiv.1004.2316",
    ),
    Reference(
        "White", 1980, "A heteroskedasticity-consistent covariance matrix estimator and a direct test for heteroskedasticity",
        "Econometrica 48(4), 817-838", "10.2307/1912934",
    ),
    Reference(
        "Wilkinson", 2013,
        "Approximate Bayesian computation (ABC) gives exact results under the assumption of model error",
        "Statistical Applications in Genetics and Molecular Biology 12(2), 129-141", "10.1515/sagmb-2013-0010",
    ),
    Reference(
        "Yao, Vehtari, Simpson and Gelman", 2018, "Using stacking to average Bayesian predictive distributions",
        "Bayesian Analysis 13(3), 917-1007", "10.1214/17-BA1091",
    ),
)  # fmt: skip

#: Names that are written in another way: without their accents, or with other names left out.
ALIASES = {
    "Krämer and Hennig": ("Kraemer and Hennig",),
    "Särkkä": ("Sarkka",),
    "Tronarp, Kersting, Särkkä and Hennig": ("Tronarp, Kersting, Sarkka and Hennig",),
}
#: What stays as it is in a page: code, formulas, links and roles.
KEPT = re.compile(r"^(```+|~~~+).*?^\1|`[^`\n]*`|\$\$.*?\$\$|!?\[[^\]]*\]\([^)]*\)|^#.*?$|<[^>\n]*>", re.MULTILINE | re.DOTALL)


def linked(text: str, form: str) -> str:
    """Text in which each reference with a DOI is a link; ``form`` has places for what stands there and for its address.

    Examples
    --------
    >>> linked("as Chopin (2002) does", "[{}]({})")
    'as [Chopin (2002)](https://doi.org/10.1093/biomet/89.3.539) does'
    """
    for one in REFERENCES:
        for names in (one.names, *ALIASES.get(one.names, ())):
            if one.url:
                text = one._replace(names=names).cited.sub(lambda m, url=one.url: form.format(m[0], url), text)
    return text


def linked_page(text: str) -> str:
    """Page in Markdown with links; code, formulas, headings and other links are left alone."""
    parts, end = [], 0
    for kept in KEPT.finditer(text):
        parts += [linked(text[end : kept.start()], "[{}]({})"), kept[0]]
        end = kept.end()
    return "".join([*parts, linked(text[end:], "[{}]({})")])


def linked_types(line: str, names: Collection[str]) -> str:
    """Link names of the package in the types of a parameter or a result, which Napoleon writes in italics.

    >>> linked_types("* **record** (*TimeSeries or list of them*) -- The record", ["TimeSeries"])
    '* **record** (:obj:`TimeSeries` *or list of them*) -- The record'
    """
    found = re.match(r"(\s*(?::[\w ]+:\s+)?(?:\* )?(?:\*\*[^*]+\*\* \()?)\*([^*]+)\*((?:\)| --|$).*)", line)
    if not found:
        return line
    before, said, after = found.groups()
    pieces = re.split(rf"\b({'|'.join(sorted(names, key=len, reverse=True))})\b", said)
    text = ""
    for i, piece in enumerate(pieces):
        if i % 2:
            text += f":obj:`{piece}`"
        elif piece.strip():  # markup needs a space beside it, which a backslash takes away again
            left, right = (" " if edge == " " else "\\ " for edge in (piece[0], piece[-1]))
            text += f"{left if i else ''}*{piece.strip()}*{right if i + 1 < len(pieces) else ''}"
        else:
            text += piece
    return f"{before}{text}{after}"


def linked_docstring(lines: list[str]) -> list[str]:
    """Lines of a docstring with links; lines of examples are left alone."""
    parts = re.split(r"(^\s*>>>.*?(?:^\s*$|\Z)|``[^`]*``|`[^`\n]*`_*)", "\n".join(lines), flags=re.MULTILINE | re.DOTALL)
    return "".join(linked(p, "`{} <{}>`__") if i % 2 == 0 else p for i, p in enumerate(parts)).split("\n")


def references_page() -> str:
    """Page with all references."""
    lines = []
    for one in REFERENCES:
        where = f"[doi:{one.doi}]({one.url})" if one.doi else ""
        lines.append(f"- {one.names} ({one.year}), *{one.title}*. {one.place}. {where}".rstrip())
    return "\n".join(["# References", "", *lines, ""])
