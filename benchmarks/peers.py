"""The likelihood of one record by other packages: value, value with gradient, and a batch of parameter vectors.

Problem A: Duffing oscillator, natural frequency 68 Hz, sampled at 610.35 Hz (omega h = 0.70), T = 3072, an input held between
the samples, 4 parameters, Gaussian noise, known initial state. Every peer integrates each interval with that interval's own
input, which is exact; looking ``u`` up by time is not, for the last stage of a step lies on the next interval.

Each peer is used as well as was found possible: the faster of forward and reverse differentiation, the batch axis written
into the vector field where that beats ``vmap``, CasADi's scalar expressions. XLA runs on the CPU with its default threads,
the others on one. Compare times within one run only: ``python benchmarks/peers.py [--quick]`` (skips what is not installed).
"""

from __future__ import annotations

import dataclasses
import sys
import timeit
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numba
import numpy as np

THETA = np.array([5.368e-6, 2.254e-4, 0.9892, 3.961])  # m, c, k, k3: 68.3 Hz, damping ratio 4.9 %
RATE = 610.35
SUBSTEPS = 4  # of Runge-Kutta in a sample; with one the error is 9 % of the response


class Problem(NamedTuple):
    """m z'' + c z' + k z + k3 z^3 = u(t) with u held from each sample to the next, and y = z + noise."""

    dt: float
    u: np.ndarray  # (T,), u[i] acts from sample i to sample i + 1
    y: np.ndarray  # (T,)
    noise: float  # standard deviation, 1 % of the response's root mean square
    theta: np.ndarray  # the true m, c, k, k3
    x0: np.ndarray  # the known initial z and z', zero
    states: np.ndarray  # (T, 2), z and z' at the samples, accurate to 1e-8

    def logp(self, misfit: Any) -> Any:
        """Log-likelihood of an output with this sum of squared residuals."""
        return -0.5 * misfit / self.noise**2 - len(self.y) * np.log(self.noise * np.sqrt(2 * np.pi))

    def reference(self) -> float:
        """Log-likelihood of the accurate output at the true parameters."""
        return float(self.logp(np.sum((self.y - self.states[:, 0]) ** 2)))


def problem(T: int = 3072, seed: int = 1) -> Problem:
    """Random-phase multisine with every line from 5 to 150 Hz; at the response's peaks the spring is stiffer by two thirds."""
    rng = np.random.default_rng(seed)
    frequency = np.fft.rfftfreq(T, 1 / RATE)
    u = np.fft.irfft((abs(frequency - 77.5) <= 72.5) * np.exp(2j * np.pi * rng.random(len(frequency))), T)
    u *= 0.05 / u.std()
    states = _trajectory(THETA, u, 1 / RATE, 64)
    noise = 0.01 * float(np.sqrt(np.mean(states[:, 0] ** 2)))
    return Problem(1 / RATE, u, states[:, 0] + noise * rng.standard_normal(T), noise, THETA, np.zeros(2), states)


def particles(problem: Problem, n: int) -> np.ndarray:
    """Parameter vectors within about 1 % of the truth, (n, 4)."""
    return problem.theta * np.exp(0.01 * np.random.default_rng(2).standard_normal((n, 4)))


class Peer(NamedTuple):
    """One package solving one problem. The first call of a function, and of a batch of a new size, compiles it."""

    package: str
    about: str
    output: Callable[[np.ndarray], np.ndarray]  # theta (4,) -> the noise-free output at the samples (T,)
    value: Callable[[np.ndarray], Any]  # a number, or an array without dimensions
    value_and_grad: Callable[[np.ndarray], tuple[Any, np.ndarray]]
    batch: Callable[[np.ndarray], np.ndarray]  # thetas (N, 4) -> log-likelihoods (N,)
    sizes: tuple[int, ...] = (256, 1000)  # of the batches worth timing


def accel(q: Any, z: Any, v: Any) -> Any:
    m, c, k, k3, u = q
    return (u - c * v - (k + k3 * z * z) * z) / m


def rk4(field: Any, q: Any, z: Any, v: Any, h: Any) -> Any:
    """One Runge-Kutta step of numbers or arrays."""
    a1 = field(q, z, v)
    z2, v2 = z + h / 2 * v, v + h / 2 * a1
    a2 = field(q, z2, v2)
    z3, v3 = z + h / 2 * v2, v + h / 2 * a2
    a3 = field(q, z3, v3)
    z4, v4 = z + h * v3, v + h * a3
    return z + h / 6 * (v + 2 * (v2 + v3) + v4), v + h / 6 * (a1 + 2 * (a2 + a3) + field(q, z4, v4))


jit = numba.njit(fastmath=True, nogil=True, error_model="numpy")
_accel, _rk4 = (numba.njit(fastmath=True, inline="always")(function) for function in (accel, rk4))


@jit
def _trajectory(theta: np.ndarray, u: np.ndarray, dt: float, substeps: int) -> np.ndarray:
    m, c, k, k3 = theta
    states = np.empty((len(u), 2))
    z = v = 0.0
    for t in range(len(u)):
        states[t, 0], states[t, 1] = z, v
        for _ in range(substeps):
            z, v = _rk4(_accel, (1.0, c / m, k / m, k3 / m, u[t] / m), z, v, dt / substeps)
    return states


@jit
def _sensitivities(theta: np.ndarray, u: np.ndarray, y: np.ndarray, dt: float) -> np.ndarray:
    """Sum of squared residuals, and its gradient by forward sensitivities, (5,)."""
    m, c, k, k3 = theta
    h = dt / SUBSTEPS
    x, rate, mean = np.zeros((3, 2, 5))  # z and z', and their derivatives with respect to the parameters
    result = np.zeros(5)
    for t in range(len(u)):
        residual = y[t] - x[0, 0]
        result[0] += residual**2
        for j in range(1, 5):
            result[j] -= 2 * residual * x[0, j]
        for _ in range(SUBSTEPS):
            mean[:] = 0.0
            for reach, weight in ((0.0, h / 6), (h / 2, h / 3), (h / 2, h / 3), (h, h / 6)):
                z, v = x[0, 0] + reach * rate[0, 0], x[1, 0] + reach * rate[1, 0]
                a, slope = (u[t] - c * v - (k + k3 * z * z) * z) / m, (k + 3 * k3 * z * z) / m
                rest = (a + slope * z + c / m * v, -a / m, -v / m, -z / m, -z * z * z / m)
                for j in range(5):
                    dz, dv = x[0, j] + reach * rate[0, j], x[1, j] + reach * rate[1, j]
                    rate[0, j], rate[1, j] = dv, rest[j] - slope * dz - c / m * dv
                    mean[0, j] += weight * rate[0, j]
                    mean[1, j] += weight * rate[1, j]
            x += mean
    return result


@jit
def _misfits(thetas: np.ndarray, u: np.ndarray, y: np.ndarray, dt: float) -> np.ndarray:
    """Sums of squared residuals, 32 particles side by side in the vector registers."""
    result = np.empty(len(thetas))
    for first in range(0, len(thetas), 32):
        m, c, k, k3 = thetas[np.minimum(np.arange(first, first + 32), len(thetas) - 1)].T.copy()
        c, k, k3, z, v, misfit = c / m, k / m, k3 / m, np.zeros(32), np.zeros(32), np.zeros(32)
        for t in range(len(u)):
            for i in range(32):
                misfit[i] += (y[t] - z[i]) ** 2
            for _ in range(SUBSTEPS):
                for i in range(32):
                    z[i], v[i] = _rk4(_accel, (1.0, c[i], k[i], k3[i], u[t] / m[i]), z[i], v[i], dt / SUBSTEPS)
        result[first : first + 32] = misfit[: len(thetas) - first]
    return result


def numba_rk4(p: Problem) -> Peer:
    def output(theta: np.ndarray) -> np.ndarray:
        return _trajectory(theta, p.u, p.dt, SUBSTEPS)[:, 0]

    def value_and_grad(theta: np.ndarray) -> tuple[float, np.ndarray]:
        result = _sensitivities(theta, p.u, p.y, p.dt)
        return p.logp(result[0]), -0.5 / p.noise**2 * result[1:]

    return Peer(
        "numba", "loops by hand, forward sensitivities, one thread: the floor of a deterministic solve", output,
        lambda theta: p.logp(np.sum((p.y - output(theta)) ** 2)), value_and_grad,
        lambda thetas: p.logp(_misfits(thetas, p.u, p.y, p.dt)),
    )  # fmt: skip


def import_jax() -> tuple[Any, Any]:
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax, jax.numpy


def jax_peer(p: Problem, name: str, about: str, output: Any, logp: Any = None, vmap: Any = False, reverse: Any = False) -> Peer:
    """From ``output``, theta (4,) -> (T,) and, unless ``vmap`` is to make the batch, (4, N) -> (T, N)."""
    jax, jnp = import_jax()
    logp = logp or (lambda theta: p.logp(jnp.sum((p.y - output(theta).T) ** 2, axis=-1)))
    forward = jax.jacfwd(lambda theta: (logp(theta),) * 2, has_aux=True)
    gradient = jax.value_and_grad(logp) if reverse else lambda theta: forward(theta)[::-1]
    batch = jax.vmap(logp) if vmap else lambda thetas: logp(thetas.T)

    def host(function: Any) -> Any:
        compiled = jax.jit(function)
        return lambda x: jax.device_get(compiled(x))  # waits for the result

    about += f"; {'vmap' if vmap else 'native batch'}, {'reverse' if reverse else 'forward'} gradient"
    return Peer(name, about, host(output), host(logp), host(gradient), host(batch))


def jax_rk4(p: Problem) -> Peer:
    jax, jnp = import_jax()

    def output(theta: Any) -> Any:
        def body(x: Any, u: Any) -> tuple[Any, Any]:
            z, q = x[0], (*theta, u)
            if theta.ndim == 1:  # XLA repeats cheap expressions: without divisions one solve is faster, many are slower
                q = (1.0, *(theta[1:] / theta[0]), u / theta[0])
            for _ in range(SUBSTEPS):
                x = rk4(accel, q, *x, p.dt / SUBSTEPS)
            return x, z

        return jax.lax.scan(body, (jnp.zeros(theta.shape[1:]),) * 2, jnp.asarray(p.u))[1]

    return jax_peer(p, "jax", "lax.scan", output)


def diffrax_tsit5(p: Problem, steps: int, vmap: bool = False) -> Peer:
    jax, jnp = import_jax()
    import diffrax

    solver, h = diffrax.Tsit5(), p.dt / steps

    def output(theta: Any) -> Any:
        pack = tuple if theta.ndim == 1 else jnp.stack  # the faster state for one solve, and for many
        term = diffrax.ODETerm(lambda t, x, u: pack((x[1], accel((*theta, u), x[0], x[1]))))

        def body(x: Any, u: Any) -> tuple[Any, Any]:
            z, state = x[0], solver.init(term, 0.0, h, x, u)  # anew: the reused last stage has the input before
            for i in range(steps):
                x, _, _, state, _ = solver.step(term, i * h, (i + 1) * h, x, u, state, made_jump=False)
            return x, z

        return jax.lax.scan(body, pack((jnp.zeros(theta.shape[1:]),) * 2), jnp.asarray(p.u))[1]

    return jax_peer(p, "diffrax", f"Tsit5().step in a scan, {steps} a sample", output, vmap=vmap, reverse=True)


def probdiffeq_filter(p: Problem, order: int, nu: int, steps: int, jumps: str) -> Peer:
    """EK0 (``order`` 0) or EK1 with an IWP(nu) prior of z itself (second-order form), on a fixed grid.

    The log-likelihood is that of the data around the filter's mean: the library's own marginal likelihood needs its smoother
    and costs more. ``jumps`` of the input are "ignored", as the library does; "moved" into the mean of the higher
    derivatives, by the difference of two of the library's Taylor expansions; or met by a "restart" from the mean of z and
    z', which forgets the uncertainty and leaves an EK0 with constant gains, computed once outside the loop. The gradient of an
    EK1 is inexact because the library (0.9) differentiates the R of a QR factorisation as if Q were constant.
    """
    jax, jnp = import_jax()
    from probdiffeq import probdiffeq as pd

    # With one coordinate the factorisations agree; as coordinates isotropic takes particles of an EK0, whose covariances agree.
    ssm = pd.state_space_model_dense() if order else pd.state_space_model_isotropic()
    linearise = ssm.constraint_ode_ts1 if order else ssm.constraint_ode_ts0
    taylor = pd.jetexpand_ode_unroll(num=nu - 1)

    def output(theta: Any) -> Any:
        def local(u: Any) -> tuple[Any, Any]:  # the solver, and the Taylor expansion of the solution, under this input
            ode = pd.ode_order_two(lambda z, v, /, *, t: accel((*theta, u), z, v), jacobian=pd.jacobian_materialize())
            return pd.solver(strategy=pd.strategy_filter(), constraint=linearise(ode)), lambda x: taylor(ode, x, t=0.0)[0]

        def start(u: Any, x: Any) -> Any:
            solver, expand = local(u)
            return solver.init(t=jnp.zeros(()), u=ssm.prior_wiener_integrated(expand(x)), damp=0.0)

        def move(state: Any, before: Any, u: Any) -> Any:
            rv = state.u
            new, old = (rv.tree_flatten.flatten_tree(local(f)[1](rv.mean[:2])) for f in (u, before))
            rv = type(rv)(rv.mean_flat + new - old, rv.cholesky_flat, rv.tree_flatten)
            return dataclasses.replace(state, u=rv, solution_full=rv)

        def body(carry: Any, inputs: Any) -> tuple[Any, Any]:
            before, u = inputs
            state = start(u, carry) if jumps == "restart" else move(carry, before, u) if jumps == "moved" else carry
            z = state.u.mean[0]
            for _ in range(steps):
                state = local(u)[0].step(state, dt=p.dt / steps, damp=0.0)
            return state.u.mean[:2] if jumps == "restart" else state, z

        u, x0 = jnp.asarray(p.u), [jnp.zeros(theta.shape[1:] or (1,))] * 2
        z = jax.lax.scan(body, x0 if jumps == "restart" else start(u[0], x0), (jnp.append(u[0], u[:-1]), u))[1]
        return z[:, 0] if theta.ndim == 1 else z

    about = f"ts{order}, IWP({nu}), {steps} a sample, input jumps: {jumps}; data around the mean"
    return jax_peer(p, "probdiffeq", about, output, vmap=order > 0, reverse=jumps == "restart")


def dynamax_ekf(p: Problem) -> Peer:
    jax, jnp = import_jax()
    from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter

    u = jnp.append(0.0, p.u[:-1])[:, None]  # the step to sample i takes row i
    process = jnp.diag((1e-5 * p.states.std(axis=0)) ** 2)  # so small that correction by the data cannot pass for accuracy

    def posterior(theta: Any, *fields: str) -> Any:
        def step(x: Any, u: Any) -> Any:
            x = x[0], x[1]  # in a loop: of unrolled substeps XLA would repeat the stages, three times as slow
            return jnp.stack(jax.lax.fori_loop(0, SUBSTEPS, lambda _, x: rk4(accel, (*theta, u[0]), *x, p.dt / SUBSTEPS), x))

        params = ParamsNLGSSM(jnp.zeros(2), jnp.zeros((2, 2)), step, process, lambda x, u: x[:1], jnp.array([[p.noise**2]]))
        return extended_kalman_filter(params, jnp.asarray(p.y)[:, None], inputs=u, output_fields=list(fields))

    def predicted(theta: Any) -> Any:  # before the sample is seen
        return jnp.append(0.0, posterior(theta, "predicted_means").predicted_means[:, 0])

    about, logp = "EKF on RK4 x4, its own marginal likelihood", lambda theta: posterior(theta).marginal_loglik
    return jax_peer(p, "dynamax", about, predicted, logp=logp, vmap=True)


def archimedes_pem(p: Problem) -> Peer:
    import archimedes as arc
    from archimedes.observers import ExtendedKalmanFilter
    from archimedes.sysid import Timeseries
    from archimedes.sysid._pem import PEMObjective  # ``pem`` minimises it; nothing public evaluates it

    def step(t: Any, x: Any, u: Any, theta: Any) -> Any:
        q, z, v = (theta[0], theta[1], theta[2], theta[3], u[0]), x[0], x[1]
        for _ in range(SUBSTEPS):
            z, v = rk4(accel, q, z, v, p.dt / SUBSTEPS)
        return np.hstack([z, v])

    # One graph of scalars a sample: eight times faster than ``discretize`` with its loop over substeps, and the default arrays.
    dynamics = arc.compile(step, kind="SX")
    observe = arc.compile(lambda t, x, u, theta: x[:1], kind="SX", name="observe")
    ekf = ExtendedKalmanFilter(dynamics, observe, np.diag((1e-5 * p.states.std(axis=0)) ** 2), np.array([[p.noise**2]]))
    # A row is one step and the sample at its end, hence the shift; the first sample needs no filter.
    data = Timeseries(ts=p.dt * np.arange(1, len(p.y)), us=p.u[None, :-1], ys=p.y[None, 1:])
    objective = PEMObjective(ekf, data, np.zeros((2, 2)), x0=p.x0)
    residuals = arc.compile(lambda theta: objective.residuals((None, theta)), name="residuals")
    scale = 2 * (len(p.y) - 1)  # the objective is half a mean of squares
    logp = arc.compile(lambda theta: p.logp(scale * objective((None, theta)) + p.y[0] ** 2), name="logp")
    return Peer(
        "archimedes", "PEM objective, EKF on RK4 x4, CasADi SX, reverse gradient; the batch is a loop",
        lambda theta: np.append(0.0, p.y[1:] - residuals(theta)), logp,
        arc.compile(lambda theta: (logp(theta), arc.grad(logp)(theta)), name="both"),
        lambda thetas: np.array([float(logp(theta)) for theta in thetas]), sizes=(256,),
    )  # fmt: skip


PEERS: dict[str, Callable[[Problem], Peer]] = {
    "numba RK4 x4": numba_rk4,
    "jax RK4 x4": jax_rk4,
    "diffrax Tsit5 x1": partial(diffrax_tsit5, steps=1),
    "diffrax Tsit5 x2": partial(diffrax_tsit5, steps=2),
    "diffrax Tsit5 x1 vmap": partial(diffrax_tsit5, steps=1, vmap=True),
    "diffrax Tsit5 x2 vmap": partial(diffrax_tsit5, steps=2, vmap=True),
    "probdiffeq ts0 IWP(2) x1": partial(probdiffeq_filter, order=0, nu=2, steps=1, jumps="ignored"),
    "probdiffeq ts1 IWP(2) x1": partial(probdiffeq_filter, order=1, nu=2, steps=1, jumps="ignored"),
    "probdiffeq ts0 IWP(4) x2 moved": partial(probdiffeq_filter, order=0, nu=4, steps=2, jumps="moved"),
    "probdiffeq ts1 IWP(4) x2 moved": partial(probdiffeq_filter, order=1, nu=4, steps=2, jumps="moved"),
    "probdiffeq ts0 IWP(7) x1 restart": partial(probdiffeq_filter, order=0, nu=7, steps=1, jumps="restart"),
    "dynamax EKF RK4 x4": dynamax_ekf,
    "archimedes PEM RK4 x4": archimedes_pem,
}


def check(peer: Peer, p: Problem) -> dict[str, float]:
    """Errors and log-likelihood at the truth; raises where output, value and batch contradict each other."""
    z, value, thetas = p.states[:, 0], peer.value(p.theta), particles(p, 3)
    spread = np.sqrt(np.mean((peer.output(p.theta) - z) ** 2)) / p.noise
    bound = len(z) / 2 * spread**2 + 5 * np.sqrt(len(z)) * spread + 0.1  # what this error can do to the log-likelihood
    number, slope = peer.value_and_grad(p.theta)
    found = [value - p.reference(), number - value, *(peer.batch(thetas) - [peer.value(theta) for theta in thetas])]
    if not np.all(np.abs(found) <= [bound] + 4 * [1e-8 * abs(value)]):
        raise ArithmeticError(f"log-likelihood beyond {bound} of the reference, or unlike in value, gradient, batch: {found}")
    along = 1e-6 * p.theta * [0.3, 1.0, -0.5, 0.2]
    difference = (peer.value(p.theta + along) - peer.value(p.theta - along)) / 2
    return {
        "state error": spread * p.noise / np.sqrt(np.mean(z**2)), "logp": float(value), "logp - reference": found[0],
        "gradient error": abs(slope @ along - difference) / np.linalg.norm(slope * along),
    }  # fmt: skip


def run(problem: Problem, peers: Iterable[str] | None = None, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Numbers of each named peer (all by default), or why they are missing; ``quick``: batches of 64 only, fewer runs."""
    results: dict[str, dict[str, Any]] = {}
    tasks: list[tuple[dict[str, Any], str, float, Callable[[], Any]]] = []
    for name in PEERS if peers is None else peers:
        try:
            peer = PEERS[name](problem)
            results[name] = row = {"version": version(peer.package), "about": peer.about, **check(peer, problem)}
        except Exception as error:  # a package that is absent, or has changed, must not take the others with it
            results[name] = {"missing": f"{type(error).__name__}: {error}".splitlines()[0]}
            continue
        tasks.append((row, "value ms", 1e3, partial(peer.value, problem.theta)))
        tasks.append((row, "value+gradient ms", 1e3, partial(peer.value_and_grad, problem.theta)))
        for n in (64,) if quick else peer.sizes:
            tasks.append((row, f"batch {n} us", 1e6 / n, partial(peer.batch, particles(problem, n))))  # a particle
    for _ in range(2 if quick else 4):  # in turns, lest a busy spell of the machine fall on one peer
        for row, key, scale, function in tasks:
            once = timeit.timeit(function, number=1)  # which may have to compile
            times = timeit.repeat(function, number=1, repeat=max(1, int((0.1 if quick else 0.4) / once)))
            row[key] = min(row.get(key, np.inf), scale * min(times))
    return results


def main() -> None:
    """Print the table, and what each line is."""
    p = problem()
    print(f"Duffing, T = {len(p.y)}; log-likelihood at the truth {p.reference():.2f}; {numba.config.NUMBA_NUM_THREADS} cores")
    results = run(p, quick="--quick" in sys.argv)
    columns = {"version": "", "state error": ".1e", "gradient error": ".0e", "logp - reference": ".1f", "value ms": ".3f"}
    columns |= {"value+gradient ms": ".2f"} | {f"batch {n} us": ".1f" for n in (64, 256, 1000)}
    print(" " * 33 + "".join(f"{key:>18s}" for key in columns))
    for name, row in results.items():
        cells = [format(row[key], form) if key in row else "-" for key, form in columns.items()]
        print(f"{name:33s}" + (row.get("missing") or "".join(f"{cell:>18s}" for cell in cells)))
    print("", *(f"{name:33s}{row['about']}" for name, row in results.items() if "about" in row), sep="\n")


if __name__ == "__main__":
    main()
