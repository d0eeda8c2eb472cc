"""Searches from several starts: which optima they end at, when enough have agreed, and what to doubt."""

from __future__ import annotations

import itertools
import re
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.differences import by_differences, standard_errors
from pm_sysid.pem.equally_good import AS_GOOD, equally_good, free_run
from pm_sysid.pem.following import followed
from pm_sysid.pem.left_over import SHORTER, LeftOver, left_over
from pm_sysid.pem.objective import Evaluation, Objective, SquaredErrors
from pm_sysid.pem.optimise import Solution, solve
from pm_sysid.pem.settings import Optimiser
from pm_sysid.pem.side_by_side import EXACT, Coordinates, End, explore
from pm_sysid.pem.starts import Starts
from pm_sysid.pem.unseen import Unseen, changes, sizes, unseen_unknowns
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.steps.integrate import method_inputs, run_batch

#: Searches end at one optimum if the record can hardly tell their ends apart: by this much in log-likelihood.
SAME = 0.5
#: Points this near each other in log-likelihood are on one ridge, where there is one.
LEVEL = 0.01
#: A landscape is rugged where other optima have at most this many times the mean squared error of the best.
RUGGED = 1.5
#: Starts of the first round beside the guess, one near it and the others far: where one of them ends where it does, and none
#: lower, that is all.
FIRST_ROUND = 4
#: Starts from which on it counts that one alone ended at the best optimum.
LONELY = 3
#: A poor fit has been found by chance where no more than this share of the starts ended there; and one whose innovations are
#: coloured, which a better one may explain, where no more than this; up to the last, it is looked for in other ways.
FEW, HALF, UNSURE = 0.25, 0.5, 0.65
#: Where all agree it is looked for if the innovations have more than this share of the outputs' variance.
COLOURED = 0.001
#: Points that searches for equally good outputs begin at, over those of the others: most of them see a few samples alone.
EQUAL = 4
#: Rounds of searches around the best optimum, where few starts agree.
AROUND = 3
#: One that drew one start alone has been found by chance, however good, where more than this share did not get anywhere.
LOST = 0.5
#: Ends that are searched from to the last digit, in a round.
POLISHED = 3
#: Optima this near each other in log-likelihood are images of each other: the model has a symmetry.
IMAGE = 1e-6
#: Values that have changed places are the same but for this share; the guess tells an order that it is nearer to, by less than
#: this times its distance from the other one.
EXCHANGED, ORDER = 1e-3, 0.9
#: Steps in a sampling interval that tell how often a solution turns, and turns for each sample of an alias: more than these are
#: not seen.
BETWEEN, TURNS = 16, 0.95
#: Changes of sign that are searched from: so many at most, where the mean squared error is at most this many times the best or
#: at most this share of the outputs' variance.
CHANGED, COMPARABLE, EXPLAINED = 4, 3.0, 0.3
#: Where a search with other signs has gone this many times as far as the optimum, it is on its way to infinity.
ENDLESS = 1e6
#: All patterns of signs are looked at for so many unknowns at most; of more, each alone and pairs.
PATTERNS = 6
#: Where equations switch, ends this much less likely than the best are moved to their optima by differences, so many at most;
#: and those whose parameters are within so many standard errors of the best are no others.
RAGGED, MOVED, APART = 30.0, 8, 3.0


class Optimum(NamedTuple):
    """One of the optima that searches ended at: its objective, the unknowns there, and how many starts it drew."""

    objective: float
    parameters: np.ndarray
    starts: int


class _Place(NamedTuple):
    """An optimum, and for each start that ended there whether it was the guess, or drawn."""

    solution: Solution
    starts: list[bool]


class Found(NamedTuple):
    """Result of a search from several starts.

    ``rivals`` (each (k,)) are other optima that are nearly as good. ``doubt`` says in words why the best optimum may not be the
    one that is wanted, and is empty where nothing speaks against it; ``note`` how the starts ended.
    """

    solution: Solution
    optima: list[Optimum]
    rivals: list[np.ndarray]
    doubt: str
    note: str
    nfev: int
    njev: int


class SeveralStarts:
    """One search from the guess, and others from drawn starts until they agree."""

    def __init__(self, objective: Objective, starts: Starts, optimiser: Optimiser) -> None:
        self.objective, self.starts, self.optimiser = objective, starts, optimiser
        self.places: list[_Place] = []
        self.tried = self.placed = self.unfinished = self.nfev = self.njev = 0
        self.coordinates: Coordinates | None = None
        self.images: list[np.ndarray] = []
        self.kind = "drawn"
        self._left: tuple[np.ndarray, LeftOver] | None = None

    def run(self, total: int, given: np.ndarray, known: np.ndarray) -> Found | None:
        """Search from the guess and ``total - 1`` drawn starts, or those ``given`` (S, k); None if nothing is possible.

        From ``known`` (n, k) as well, where optima were that are looked at more closely now.
        """
        self.from_guess()
        for x in known:
            place = self.add(self.solve(x))
            if place is not None and not place.starts:  # that of the guess has been there before, and counts once
                place.starts.append(True)
                self.tried += 1
        more = total - 1
        self.kind = "given" if len(given) else "drawn"
        if len(given):
            self.round(given, drawn=True)
        elif more > 0:
            self.starts.explaining()
            first = min(FIRST_ROUND, more)
            close = min(1, first // 2)
            self.round(np.concatenate([self.starts.near(self.starts.x, close), self.starts.far(first - close)]), drawn=True)
            if not self.agreed() and more > first:
                near = (more - first) // 2
                centre = self.best.solution.x if self.places else self.starts.x
                self.round(np.concatenate([self.starts.near(centre, near), self.starts.far(more - first - near)]), drawn=True)
            if self.places and (not free_run(self.objective) or self.unexplained()):
                self.look_wide(more)
            if self.places and (self.unsure() or (self.unsure(1.0) and self.unexplained())):
                self.follow(self.starts.far(more if self.unsure() else first))
            if self.places:
                self.change_signs()
                self.keep_signs()
                self.exchange()
            if self.places and more > first:
                self.around_best(total)
            if self.places and more > first and self.lonely():
                near = total // 2
                self.round(
                    np.concatenate([self.starts.near(self.best.solution.x, near), self.starts.far(total - near)]), drawn=True
                )
            if self.places and free_run(self.objective):
                self.look_equal(EQUAL * more)
        if self.places and self.best.solution.success and not self.left_over(self.best.solution.x).poor:
            self.smooth()
        self.nfev += self.starts.evaluated
        return self.found() if self.places else None

    @property
    def best(self) -> _Place:
        """The lowest optimum."""
        return min(self.places, key=lambda p: p.solution.evaluation.value)

    def agreed(self) -> bool:
        """Whether a drawn start has ended where the guess has, none at an optimum that could be as good, and the fit is one."""
        if not self.places or not self.best.solution.success or len(self.best.starts) < 2:
            return False
        value, c = self.best.solution.evaluation.value, self.coordinates
        assert c is not None
        if self.left_over(self.best.solution.x).poor or self.unsure():
            return False
        return all(c.gain(value, p.solution.evaluation.value) > AS_GOOD for p in self.places if p is not self.best)

    def smooth(self) -> None:
        """Where equations switch, move ends to their optima by differences, and put those together that are then one.

        The best may be another one then, and the derivatives of each are those over a standard error.
        """
        c, best = self.coordinates, self.best
        assert c is not None
        value, ends = best.solution.evaluation.value, sorted(self.places, key=lambda p: p.solution.evaluation.value)
        moved, rest = [], []
        for i, place in enumerate(ends):
            if i > MOVED or c.gain(value, place.solution.evaluation.value) > RAGGED:
                rest.append(place)
                continue
            found = by_differences(c, place.solution.x, place.solution.evaluation)
            self.nfev += 2 * place.solution.x.size if found is None else found.evaluated
            if found is None and i == 0:
                return
            if found is not None:
                new = place.solution._replace(x=found.x, evaluation=found.evaluation, rates=found.rates)
                place = place._replace(solution=new)
            moved.append(place)
        moved.sort(key=lambda p: p.solution.evaluation.value)
        first = moved[0].solution
        errors = standard_errors(c, first.x, first.evaluation)
        told = ~self.objective.layout.initial if not self.objective.layout.initial.all() else np.ones(errors.size, dtype=bool)
        self.places = [moved[0]]
        for place in [*moved[1:], *rest]:
            away = np.abs(c.of(place.solution.x) - c.of(first.x))
            near = c.gain(first.evaluation.value, place.solution.evaluation.value) < RAGGED
            if near and np.all((away <= APART * errors) | ~told):
                self.places[0].starts.extend(place.starts)
            else:
                self.places.append(place)

    def left_over(self, x: np.ndarray) -> LeftOver:
        """What the innovations at unknowns have left."""
        if self._left is None or not np.array_equal(self._left[0], x):  # the best optimum is asked for again and again
            self._left = x.copy(), left_over(self.objective, x, self.starts.lower, self.starts.upper)
        return self._left[1]

    def unsure(self, share: float = UNSURE) -> bool:
        """Whether innovations have a structure that a better optimum may explain, and of drawn starts few ended here."""
        drew = sum(self.best.starts)
        if drew > share * (self.tried - self.placed):
            return False
        rest = self.left_over(self.best.solution.x)
        return rest.coloured and not rest.noiseless

    def unexplained(self) -> bool:
        """Whether innovations have a structure, and a part of the outputs that is worth another search."""
        rest = self.left_over(self.best.solution.x)
        return rest.coloured and rest.share > COLOURED

    def lonely(self) -> bool:
        """Whether the best optimum drew one start, while others found others."""
        return len(self.best.starts) == 1 and self.tried > 1

    def from_guess(self) -> None:
        """The search from the guess, to the last digit."""
        x, starts = self.starts.x, self.starts
        solution = self.solve(x)
        self.tried = 1
        largest = abs(solution.history[0].objective) if solution.history else np.inf
        largest = largest if np.isfinite(largest) else 1.0
        self.coordinates = Coordinates(self.objective, starts.lower, starts.upper, largest)
        if solution.evaluation.finite:
            self.places.append(_Place(solution, [True]))

    def follow(self, starts: np.ndarray) -> None:
        """Search from where predictions end that follow the measurements; with the guess's signs where these fit as well."""
        c, guess, layout = self.coordinates, self.starts.x, self.objective.layout
        assert c is not None
        ends, points = followed(self.objective, self.best.solution.x, starts, self.starts.lower, self.starts.upper)
        self.nfev, self.njev = self.nfev + points, self.njev + points
        if not len(ends):
            return
        for own in (~layout.initial, np.ones(guess.size, dtype=bool)):
            turned = np.where(own & (guess != 0.0), np.copysign(ends, guess), ends)
            inside = ((turned >= self.starts.lower) & (turned <= self.starts.upper)).all(axis=1)
            values = self.objective.values(np.concatenate([ends, turned])).reshape(2, -1)
            self.nfev += values.size
            same = inside & np.array([np.isfinite(a) and abs(c.gain(a, b)) < IMAGE for a, b in values.T])
            ends[same] = turned[same]
        self.round(ends)

    def look_equal(self, n: int) -> None:
        """Search for other unknowns with the outputs of the best optimum, from points up to a factor of ten from it."""
        best, starts = self.best.solution.x, self.starts
        ends, points = equally_good(self.objective, best, starts.wide(best, n), starts.lower, starts.upper)
        self.nfev, self.njev = self.nfev + points, self.njev + points
        new = [x for x in ends if not any(self.alike(p.solution, x, SAME) for p in self.places)]
        if new:
            self.round(np.array(new))

    def look_wide(self, n: int) -> None:
        """Search from points up to a factor of ten from the best optimum for others.

        That is done where predictions are no free run, or where they leave something to explain.
        Another may be exactly as good where starts near the guess agree on the one. How many end at an optimum that is known
        says nothing: they begin around the best.
        """
        known = {id(p.starts): len(p.starts) for p in self.places}
        tried, placed, unfinished = self.tried, self.placed, self.unfinished
        self.round(self.starts.better_wide(self.best.solution.x, n))
        new = 0
        for place in self.places:
            if id(place.starts) in known:
                del place.starts[known[id(place.starts)] :]
            else:
                new += len(place.starts)
        self.tried, self.placed, self.unfinished = tried + new, placed + new, unfinished

    def around_best(self, n: int) -> None:
        """Search from points near the best optimum while few starts agree on it, and again around a better one."""
        c = self.coordinates
        assert c is not None
        for _ in range(AROUND):
            if not (self.unsure(HALF) or sum(self.best.starts) <= FEW * (self.tried - self.placed)):
                return
            value = self.best.solution.evaluation.value
            self.round(self.starts.near(self.best.solution.x, n))
            if c.gain(self.best.solution.evaluation.value, value) < SAME:
                return

    def change_signs(self) -> None:
        """Search from the best optimum with other signs, where that fits nearly as well.

        A sign that was guessed wrong can have an optimum of its own, and no start around the guess has the other one. Where
        the other sign fits exactly as well, the model has a symmetry, and the sign is that of the guess.
        """
        c = self.coordinates
        assert c is not None
        best = self.best.solution
        value = best.evaluation.value
        points = self.other_signs(best.x)
        if not len(points):
            return
        self.nfev += len(points)
        found, explained = self.objective.values(points), -np.inf
        if isinstance(self.objective, SquaredErrors):
            y = np.concatenate([r.output_matrix for r in self.objective.filter.records])
            explained = EXPLAINED * float(np.nansum(np.nanvar(y, axis=0)))
        begin, images = list[np.ndarray](), list[np.ndarray]()
        for i in np.argsort(found):
            if not np.isfinite(found[i]) or self.alike(best, points[i], 4 * SAME):
                continue
            if abs(c.gain(value, found[i])) < IMAGE:
                self.images.append(np.sign(points[i]) != np.sign(best.x))
                images.append(points[i])
            elif len(begin) < CHANGED and (
                c.gain(value, found[i]) < 0.5 * self.objective.count * np.log(COMPARABLE) or found[i] < explained
            ):
                begin.append(points[i])
        nearest = min([best.x, *images], key=self.away)
        if nearest is not best.x:  # a search has passed zero: an answer has the signs of the guess where it may
            place, turned = self.best, self.add(self.solve(nearest))
            if turned is not None and abs(c.gain(value, turned.solution.evaluation.value)) < IMAGE and turned is not place:
                turned.starts.extend(place.starts)
                self.places = [p for p in self.places if p is not place]
        if not begin:
            return
        before = {id(p) for p in self.places}
        self.round(np.array(begin))
        kept = []
        for place in self.places:
            x = place.solution.x
            as_good = abs(c.gain(value, place.solution.evaluation.value)) < IMAGE and not self.alike(best, x, 4 * SAME)
            if as_good and self.alike(best, np.copysign(x, best.x), 4 * SAME):
                self.images.append(np.sign(x) != np.sign(best.x))
            elif id(place) in before or place is self.best or np.all(np.abs(x) < ENDLESS * np.maximum(np.abs(best.x), 1.0)):
                kept.append(place)
        self.places = kept

    def keep_signs(self) -> None:
        """Search with the signs of the guess where parameters of the best optimum have others.

        Another optimum may fit as well with them, and more than signs may be different there: an S-shaped curve is the same
        with its slope and its height turned around, and another level.
        """
        c, starts, best = self.coordinates, self.starts, self.best.solution.x
        assert c is not None
        crossed = self.crossed(best)
        if not crossed.any():
            return
        lower = np.where(crossed & (starts.x > 0), np.maximum(starts.lower, 0.0), starts.lower)
        upper = np.where(crossed & (starts.x < 0), np.minimum(starts.upper, 0.0), starts.upper)
        inside = Coordinates(self.objective, lower, upper, c.largest)
        around = starts.near(starts.x, FIRST_ROUND)
        points = np.concatenate([starts.x[None], around, np.where(crossed, -best, best)[None]])
        ends, n = explore(inside, np.clip(points, lower, upper), lambda *_: False)
        self.nfev, self.njev = self.nfev + n, self.njev + n
        kept = [e.x for e in ends if not (crossed & (e.x == 0.0)).any()]
        if kept:
            self.round(np.array(kept))

    def crossed(self, x: np.ndarray) -> np.ndarray:
        """Which of the unknowns (k,) are parameters with another sign than in the guess."""
        return np.asarray(~self.objective.layout.initial & (np.sign(x) == -np.sign(self.starts.x)) & (x != 0.0))

    def away(self, x: np.ndarray) -> float:
        """How far unknowns (k,) are from the guess, in sizes of it."""
        return float(np.linalg.norm((x - self.starts.x) / sizes(self.starts.x)))

    def other_signs(self, x: np.ndarray) -> np.ndarray:
        """Unknowns (S, k) with other signs within the bounds.

        All patterns of signs of a few unknowns (those of one name in several records change together, and each alone); either
        with the initial states, whose signs may follow, or without.
        """
        layout = self.objective.layout
        names = np.array([re.sub(r"(?<=.)\[\d+\]", "", name) for name in layout.names])
        inside = (-x >= self.starts.lower) & (-x <= self.starts.upper)
        free, initial = ~layout.positive & (x != 0.0) & inside, layout.initial
        groups = [g for n in dict.fromkeys(names[~initial].tolist()) if (g := (names == n) & free).any()]
        most = len(groups) if len(groups) <= PATTERNS else 2
        several = [chosen for n in range(1, most + 1) for chosen in itertools.combinations(groups, n)]
        flips = [np.logical_or.reduce(chosen) for chosen in several]
        flips += [np.arange(x.size) == i for g in groups if g.sum() > 1 for i in np.flatnonzero(g)]
        if (free & initial).any():
            flips = [*flips, *(f | (free & initial) for f in flips), free & initial]
        return np.array([np.where(f, -x, x) for f in flips]).reshape(-1, x.size)

    def exchange(self) -> None:
        """Search from the best optimum with values of parameters exchanged, of two or of two pairs, where that may fit as well.

        Which of two rates, or of two oscillators, is which may be told by the scale of the output alone, or not at all: each
        way has an optimum of its own then. What counts is therefore how well outputs of any scale and level would fit; where
        one parameter sets the scale, the search begins with the right one.
        """
        c = self.coordinates
        assert c is not None
        best, y = self.best.solution, np.concatenate([r.output_matrix for r in self.objective.filter.records])
        seen = self.objective.measured
        points = np.concatenate([best.x[None], self.exchanged(best.x)])
        if len(points) == 1:
            return
        self.nfev += len(points)
        left, slopes = [], []
        for outputs in self.objective.outputs(points):
            lines = [_line(y[here, i], (y - outputs[:, : y.shape[1]])[here, i]) for i, here in enumerate(seen.T)]
            slopes.append([slope for slope, _ in lines])
            left.append(float(np.log([max(share, EXACT) for _, share in lines]) @ seen.sum(axis=0)) / self.objective.count)
        near = np.array(left) - left[0] < np.log(COMPARABLE)  # NaN: impossible
        others = [i for i in np.argsort(left) if i and near[i] and not self.alike(best, points[i], 4 * SAME)]
        if others:
            self.round(np.array([self.scaled(points[i], slopes[i]) for i in others[:CHANGED]]))

    def scaled(self, x: np.ndarray, factors: list[float]) -> np.ndarray:
        """Unknowns (k,), or those with one parameter times such a factor, or over it, that have the lowest objective."""
        told = np.flatnonzero(~self.objective.layout.positive & ~self.objective.layout.initial & (x != 0.0))
        by = np.unique([f for b in factors if b != 0.0 and np.isfinite(b) for f in (b, 1.0 / b)])
        points = np.tile(x, (1 + by.size * told.size, 1))
        for point, (f, i) in zip(points[1:], itertools.product(by, told), strict=True):
            point[i] *= f
        points = points[((points >= self.starts.lower) & (points <= self.starts.upper)).all(axis=1)]
        self.nfev += len(points)
        return np.asarray(points[np.argmin(self.objective.values(points))])

    def exchanged(self, x: np.ndarray) -> np.ndarray:
        """Unknowns (S, k) within the bounds with parameters of one sign exchanged: two, and two pairs where these are few."""
        layout = self.objective.layout
        told = np.flatnonzero(~layout.positive & ~layout.initial & (x != 0.0))
        pairs = [(i, j) for i, j in itertools.combinations(told.tolist(), 2) if x[i] * x[j] > 0 and x[i] != x[j]]
        several: list[tuple[tuple[int, int], ...]] = [(p,) for p in pairs]
        if told.size <= PATTERNS:
            several += [both for both in itertools.combinations(pairs, 2) if not set(both[0]) & set(both[1])]
        points = np.tile(x, (len(several), 1))
        for point, swaps in zip(points, several, strict=True):
            for i, j in swaps:
                point[[i, j]] = x[[j, i]]
        inside = (points >= self.starts.lower) & (points <= self.starts.upper)
        return np.asarray(points[inside.all(axis=1)])

    def symmetries(self) -> list[str]:
        """Names of unknowns whose signs may change together; no combinations of others that may."""
        told: list[np.ndarray] = []
        sums = {np.zeros(self.starts.x.size, dtype=bool).tobytes()}
        for image in sorted(self.images, key=np.sum):
            if image.tobytes() not in sums:
                told.append(image)
                sums |= {(np.frombuffer(other, dtype=bool) ^ image).tobytes() for other in sums}
        return [", ".join(n for n, on in zip(self.objective.layout.names, image, strict=True) if on) for image in told]

    def add(self, solution: Solution) -> _Place | None:
        """Where a search to the last digit has ended, among the optima: one of them, in the place of one, or new."""
        place = self.place_of(solution.x, solution.evaluation)
        if not solution.evaluation.finite or (place and place.solution.evaluation.value <= solution.evaluation.value):
            return place
        self.places = [p for p in self.places if p is not place]
        self.places.append(_Place(solution, place.starts if place else []))
        return self.places[-1]

    def solve(self, x: np.ndarray) -> Solution:
        """Search from one point as the user asked for."""
        solution = solve(self.objective, x, self.starts.lower, self.starts.upper, self.optimiser)
        self.nfev, self.njev = self.nfev + solution.nfev, self.njev + solution.njev
        return solution

    def round(self, starts: np.ndarray, *, drawn: bool = False) -> None:
        """Search from starts side by side; the lowest ends, where new, to the last digit.

        Where searches end that were not ``drawn`` says little of how many others would.
        """
        assert self.coordinates is not None
        self.placed += 0 if drawn else len(starts)
        ends, points = explore(self.coordinates, starts, lambda x, e: self.place_of(x, e) is not None)
        self.nfev, self.njev, self.tried = self.nfev + points, self.njev + points, self.tried + len(starts)
        self.unfinished += len(starts) - len(ends)
        left = POLISHED
        for end in sorted(ends, key=lambda e: e.evaluation.value):
            place = self.place_of(end.x, end.evaluation)
            if place is None and left and self.worth(end):
                left -= 1
                place = self.add(self.solve(end.x))
            elif place is None and end.how == "ended":
                place = _Place(_as_solution(end), [])
                self.places.append(place)
            if place is None:
                self.unfinished += 1
            else:
                place.starts.append(drawn)

    def worth(self, end: End) -> bool:
        """Whether an end could be, or become, as good as the best."""
        assert self.coordinates is not None
        return not self.places or self.coordinates.gain(self.best.solution.evaluation.value, end.evaluation.value) < AS_GOOD

    def place_of(self, x: np.ndarray, evaluation: Evaluation) -> _Place | None:
        """The optimum at unknowns, as far as the record can tell."""
        return next((p for p in self.places if self.same(p.solution, x, evaluation)), None)

    def same(self, solution: Solution, x: np.ndarray, evaluation: Evaluation) -> bool:
        """Whether a point is at an optimum: as likely, and within what the information there calls the same."""
        c = self.coordinates
        assert c is not None
        value = solution.evaluation.value
        apart = abs(c.gain(value, evaluation.value))
        if apart > SAME:
            return False
        unseen = self.unseen(solution) if apart < LEVEL else None
        return self.alike(solution, x, 4 * SAME, unseen if unseen and unseen.unknowns.any() else None)

    def alike(self, solution: Solution, x: np.ndarray, within: float, unseen: Unseen | None = None) -> bool:
        """Whether unknowns are those of an optimum by its information, in log-likelihood, whatever the noise.

        Noise is left out where there are other unknowns: whether there is a little or none may be two optima, which say the
        same of the parameters. So are ``unseen`` unknowns: along a ridge optima are connected, and others may be beside it.
        """
        c = self.coordinates
        assert c is not None
        _, information = c.slope(solution.x, solution.evaluation)
        if not np.isfinite(information).all():
            return False
        away, rest, told = c.of(x) - c.of(solution.x), ~c.positive, np.ones(x.size, dtype=bool)
        if unseen is not None:
            rest, told = rest & ~unseen.unknowns, ~unseen.given
            if not rest.any():
                return True
        if rest.any() and not rest.all():
            size = np.sqrt(np.diag(information))
            size = np.where(size > 0, size, 1.0)
            scaled = (information / np.outer(size, size))[np.ix_(told, told)]
            covariance = np.linalg.pinv(scaled, rcond=1e-12, hermitian=True)[np.ix_(rest[told], rest[told])]
            information, away = np.linalg.pinv(covariance, rcond=1e-12, hermitian=True), (away * size)[rest]
        away = np.where(np.isfinite(away), away, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):  # a search may have run off to 1e160
            return bool(0.5 * c.unit(solution.evaluation.value) * away @ information @ away < within)

    def mirrored(self, best: Solution, other: Solution) -> bool:
        """Whether another optimum fits exactly as well by other signs of initial states, or signs that are known to be free."""
        c = self.coordinates
        assert c is not None
        if abs(c.gain(best.evaluation.value, other.evaluation.value)) > IMAGE:
            return False
        turned = np.copysign(other.x, best.x)
        only_initial = np.where(self.objective.layout.initial, turned, other.x)
        known = any(np.array_equal(np.sign(other.x) != np.sign(best.x), image) for image in self.images)
        return self.alike(best, only_initial, 4 * SAME) or (known and self.alike(best, turned, 4 * SAME))

    def unseen(self, solution: Solution) -> Unseen:
        """Unknowns in combinations of which the record says nothing: along these, optima are connected."""
        with np.errstate(over="ignore"):  # an unknown may have run off to infinity
            size = changes(self.objective, solution.x, self.starts.x)
            information = solution.evaluation.information * np.outer(size, size)
        free = (solution.x > self.starts.lower) & (solution.x < self.starts.upper) & ~self.objective.layout.positive
        return unseen_unknowns(self.objective, solution.evaluation, information, free)

    def found(self) -> Found:
        """The lowest optimum, all of them, and what to doubt."""
        places = sorted(self.places, key=lambda p: p.solution.evaluation.value)
        c, least = self.coordinates, places[0].solution.evaluation.value
        assert c is not None
        images = [p for p in places if c.gain(least, p.solution.evaluation.value) < IMAGE]  # chance decides among these
        nearest = min(images, key=lambda p: self.away(p.solution.x))
        nearest = next((p for p in images if self.reflected(p.solution, nearest.solution)), nearest)
        places = [nearest, *(p for p in places if p is not nearest)]
        solution = nearest.solution
        optima = [Optimum(p.solution.evaluation.value, p.solution.x.copy(), len(p.starts)) for p in places]
        rivals = [p.solution.x for p in self.rivals(places)]
        return Found(solution, optima, rivals, self.doubt(places), self.note(places), self.nfev, self.njev)

    def others(self, places: list[_Place]) -> list[_Place]:
        """Optima that say something else than the best, the first of all."""
        best, rest = places[0].solution, [p for p in places[1:] if not self.renamed(places[0].solution, p.solution)]
        rest = [p for p in rest if not self.alike(best, p.solution.x, 4 * SAME) and not self.mirrored(best, p.solution)]
        return [p for p in rest if not self.aliased(best, p.solution) and not self.reflected(best, p.solution)]

    def reflected(self, best: Solution, other: Solution) -> bool:
        """Whether another optimum fits exactly as well, and has more signs than the best that are not those of the guess.

        Where other guesses are given the signs of one say nothing.
        """
        c = self.coordinates
        assert c is not None
        if self.kind == "given":
            return False
        same = abs(c.gain(best.evaluation.value, other.evaluation.value)) < IMAGE
        turned, further = self.crossed(best.x), self.crossed(other.x)
        if not same or (turned & ~further).any() or not (further & ~turned).any():
            return False
        # Along a ridge a sign is chance.
        return bool((further & ~turned & ~self.unseen(best).unknowns & ~self.unseen(other).unknowns).any())

    def aliased(self, best: Solution, other: Solution) -> bool:
        """Whether another optimum fits exactly as well since a solution without input turns more often than it is sampled.

        Which of a frequency and its aliases is right no record of equal sampling intervals tells; the guess does.
        """
        c, filtered = self.coordinates, self.objective.filter
        assert c is not None
        system, records = filtered.system, filtered.records
        if abs(c.gain(best.evaluation.value, other.evaluation.value)) > IMAGE or len(records) > 1:
            return False
        if system.inputs or system.timed or system.latents:
            return False
        (record,) = records
        places = np.arange(BETWEEN * (len(record) - 1) + 1) / BETWEEN
        dense = TimeSeries(np.interp(places, np.arange(len(record)), record.t), None)
        params, x0 = (np.array(v) for v in zip(*(self.objective.layout.place(s.x) for s in (best, other)), strict=True))
        theta, start = params[:, : len(system.params)], x0[:, 0, : len(system.states)]
        with np.errstate(all="ignore"):
            runs = run_batch(system, theta, start, method_inputs(dense, 1, "rk4"))[:, :, : len(system.outputs)]
            turns = np.sum(np.diff(np.sign(np.diff(runs, axis=1)), axis=1) != 0, axis=1).max(axis=1) / len(record)
        return bool(np.isfinite(runs).all() and turns.max() > TURNS)

    def renamed(self, best: Solution, other: Solution) -> list[str]:
        """Pairs of parameters that have changed places in another optimum, if that is all, and the guess tells their order.

        Components in parallel or in series may be called as one likes: the fit is the same.
        """
        c, layout, guess = self.coordinates, self.objective.layout, self.starts.x
        assert c is not None
        told = np.flatnonzero(~layout.positive & ~layout.initial)
        x, y, z = best.x[told], other.x[told], guess[told]
        moved = np.flatnonzero(np.abs(y - x) > EXCHANGED * np.abs(x))
        if abs(c.gain(best.evaluation.value, other.evaluation.value)) > IMAGE or not moved.size:
            return []
        pairs = [
            (i, j) for i, j in itertools.combinations(moved.tolist(), 2)
            if abs(y[i] - x[j]) <= EXCHANGED * abs(x[j]) and abs(y[j] - x[i]) <= EXCHANGED * abs(x[i])
        ]  # fmt: skip
        nearer, farther = (np.linalg.norm((v - z) / sizes(z)) for v in (x, y))
        if 2 * len(pairs) != moved.size or len(set(np.ravel(pairs))) != moved.size or nearer > ORDER * farther:
            return []
        return [f"{layout.names[told[i]]} and {layout.names[told[j]]}" for i, j in pairs]

    def rivals(self, places: list[_Place]) -> list[_Place]:
        """Those that are nearly as good."""
        c, value = self.coordinates, places[0].solution.evaluation.value
        assert c is not None
        return [p for p in self.others(places) if c.gain(value, p.solution.evaluation.value) < AS_GOOD]

    def note(self, places: list[_Place]) -> str:
        """How the starts ended."""
        if self.tried == 1:
            crossed = ", ".join(np.array(self.objective.layout.names)[self.crossed(places[0].solution.x)])
            return f"The only search ended with another sign of {crossed} than the guess." if crossed else ""
        words = f"{len(places[0].starts)} of {self.tried} starts ended here"
        if len(places) > 1:
            others = ", ".join(f"{p.solution.evaluation.value:.4g} ({len(p.starts)})" for p in places[1:4])
            words += f", others at objectives of {others}{', ...' if len(places) > 4 else ''}"
        words = f"{words}{f'; {self.unfinished} did not get anywhere' if self.unfinished else ''}."
        if self.images:
            words += f" The fit is the same with the other sign of {'; or of '.join(self.symmetries())}."
        for place in places[1:]:
            if pairs := self.renamed(places[0].solution, place.solution):
                words += f" The fit is the same with {', '.join(pairs)} exchanged; their order is that of the guess."
            elif self.aliased(places[0].solution, place.solution):
                words += (
                    f" The fit is the same with {self.parameters(place.solution.x)}: one is an alias of the other, which no "
                    "record of equal intervals without input tells apart, and the guess is nearer to this one."
                )
            elif self.reflected(places[0].solution, place.solution) and not self.mirrored(places[0].solution, place.solution):
                words += f" The fit is the same with {self.parameters(place.solution.x)}, which has other signs than the guess."
        return words

    def parameters(self, x: np.ndarray) -> str:
        """Unknowns (k,) in words, without initial states."""
        told = zip(self.objective.layout.names, x, self.objective.layout.initial, strict=True)
        return ", ".join(f"{n} = {v:.5g}" for n, v, initial in told if not initial)

    def doubt(self, places: list[_Place]) -> str:
        """Why the best optimum may not be the one that is wanted."""
        c = self.coordinates
        assert c is not None
        best = places[0].solution
        drew, own, drawn = len(places[0].starts), sum(places[0].starts), self.tried - self.placed
        if self.tried > LONELY and own <= FEW * drawn and (rest := self.left_over(best.x)).poor:
            return (
                f"The fit is poor (its errors have {100 * rest.share:.0f} % of the outputs' variance, and are not white), and "
                f"only {own} of {drawn} {self.kind} starts ended here: a far better one may have been missed. {SHORTER}"
            )
        alone = own > 1 and not any(p.starts for p in places[1:])  # the others did not get anywhere, which says nothing
        if self.tried > 1 and not alone and self.unsure(HALF):
            return (
                f"Only {own} of {drawn} {self.kind} starts ended here, and the innovations are not white: a better optimum may "
                f"have been missed. {SHORTER}"
            )
        others = self.others(places)
        if rivals := self.rivals(places):
            other = rivals[0].solution
            where = self.parameters(other.x)
            less = max(c.gain(best.evaluation.value, other.evaluation.value), 0.0)
            return (
                f"Another optimum is nearly as good ({where}; objective {other.evaluation.value:.6g}, {less:.2g} less in "
                "log-likelihood), and the record hardly tells which is right: set bounds that only one is within, or use a "
                "longer record."
            )
        if drew == 1 and self.tried > LONELY and self.unfinished > LOST * self.tried:
            return (
                f"Only one of {self.tried} starts ended here, and {self.unfinished} did not get anywhere: a lower optimum may "
                "have been missed. Give more starts (starts=50), bounds, or a better guess."
            )
        if others and drew == 1 and self.tried > LONELY:
            further = c.gain(best.evaluation.value, others[0].solution.evaluation.value)
            if further < 0.5 * self.objective.count * np.log(RUGGED):
                return (
                    f"Only one of {self.tried} starts ended here, and others at optima that are not much higher: a lower one "
                    "may have been missed. Give more starts (starts=50), bounds, or a better guess."
                )
        return ""


def _line(output: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """Slope of the best line of an output in what was predicted, and the share of its variance left; NaN if not finite."""
    if not np.isfinite(predicted).all():
        return np.nan, np.nan
    if output.size < 2 or np.ptp(predicted) == 0.0 or np.ptp(output) == 0.0:
        return 1.0, 1.0
    with np.errstate(all="ignore"):
        r = np.corrcoef(output, predicted)[0, 1]
        return float(r * np.std(output) / np.std(predicted)), float(1.0 - r**2)


def _as_solution(end: End) -> Solution:
    """A higher optimum, which no search has been to the last digit of."""
    return Solution(end.x, end.evaluation, True, 0, "", 0, 0, [])
