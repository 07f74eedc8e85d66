"""What JAX programs do beside layers: each by minka on four devices as by jax.jit, or refused by name before it is compiled."""

import inspect
import re

import jax
import jax.numpy as jnp
import jax.scipy.linalg as linalg
import minka
import numpy as np
import pytest
from conftest import assert_close
from jax import lax

ROWS = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
MATRICES = np.random.default_rng(1).normal(size=(8, 6, 6)).astype(np.float32)
LARGE = np.random.default_rng(2).normal(size=(2, 150, 180)).astype(np.float32)


def positive(x):
    return x @ x.mT + 6 * jnp.eye(x.shape[-1])


@jax.custom_jvp
def clipped(x):
    return jnp.clip(x, -1, 1)


clipped.defjvp(lambda x, t: (clipped(*x), t[0] * 0.5))


@jax.custom_vjp
def scaled(x):
    return 2 * x


scaled.defvjp(lambda x: (scaled(x), x), lambda x, g: (g * jnp.sign(x),))


def halved_until_small(x):
    """A loop of as many trips as the values ask for."""
    return lax.while_loop(lambda y: jnp.abs(y).max() > 0.1, lambda y: y / 2, x)


def branches(x):
    return lax.switch((x.sum() > 0).astype(jnp.int32) + 1, [jnp.sin, jnp.cos, lambda y: y @ y.T @ y], x)


def scan(x):
    return lax.scan(lambda carry, row: (carry * 0.5 + row, jnp.tanh(carry)), jnp.zeros(x.shape[1]), x, reverse=True)


def float8(x, kind):
    return (x.astype(kind).astype(jnp.float32) @ jnp.ones((x.shape[1], 4)))


# Of ROWS.
ON_ROWS = {
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)),
    "rfft and back": lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2),
    "fft of two dimensions": lambda x: jnp.fft.fftn(x.reshape(8, 4, 4), axes=(1, 2)).real,
    "fft of complex numbers, inverse": lambda x: jnp.fft.ifft(x + 1j * x[::-1]),
    "complex products": lambda x: (x + 1j) @ (x - 2j).conj().T,
    "sort": lambda x: jnp.sort(x, axis=0),
    "argsort": lambda x: jnp.argsort(x, axis=1),
    "sort by two keys": lambda x: lax.sort((jnp.round(x), x), num_keys=2),
    "top k": lambda x: lax.top_k(x, 3),
    "median": lambda x: jnp.median(x, axis=1),
    "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x[0]), x),
    "cumulative sums and products": lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cumlogsumexp(x, 1)),
    "associative scan": lambda x: lax.associative_scan(lambda a, b: a * 0.5 + b, x, axis=1),
    "scan": scan,
    "loop of fixed length": lambda x: lax.fori_loop(0, 5, lambda i, y: y + jnp.roll(y, 1, 0) * i, x),
    "loop of unknown length": halved_until_small,
    "vmap of a loop": jax.vmap(halved_until_small),
    "vmap of a branch": jax.vmap(lambda row: lax.cond(row[0] > 0, jnp.sin, lambda r: r * 2, row)),
    "switch": branches,
    "nested jit": lambda x: jax.jit(lambda y: jax.jit(jnp.tanh)(y) + y)(x) * jax.jit(jnp.tanh)(x),
    "custom jvp": lambda x: jax.jvp(clipped, (x,), (jnp.ones_like(x),)),
    "custom vjp, vmapped": lambda x: jax.vmap(jax.grad(lambda row: scaled(row).sum()))(x),
    "hessian": lambda x: jax.hessian(lambda row: jnp.sum(jnp.tanh(row) ** 2))(x[0]),
    "float8 e4m3": lambda x: float8(x, jnp.float8_e4m3fn),
    "float8 e5m2": lambda x: float8(x, jnp.float8_e5m2),
    "int8 products": lambda x: lax.dot(jnp.round(8 * x).astype(jnp.int8), jnp.ones((16, 4), jnp.int8),
                                       preferred_element_type=jnp.int32),
    "uint4": lambda x: (jnp.abs(4 * x).astype(jnp.uint4) * 3).astype(jnp.int32),
    "bits": lambda x: lax.population_count(lax.bitcast_convert_type(x, jnp.uint32)) ^ 5,
    "segment sums": lambda x: jax.ops.segment_sum(x, jnp.arange(8) % 3, num_segments=3),
    "histogram": lambda x: jnp.bincount(jnp.abs(4 * x).astype(jnp.int32).ravel(), length=20),
    "slices at computed places": lambda x: lax.dynamic_update_slice(x, x[:2], (jnp.argmax(x[:, 0]), 3)),
    "special functions": lambda x: (lax.lgamma(jnp.abs(x) + 1), lax.digamma(jnp.abs(x) + 1), lax.erf_inv(jnp.tanh(x) * 0.9)),
    "permutation": lambda x: jax.random.permutation(jax.random.key(3), x, axis=0),
}

# Of MATRICES, whose batch can be split.
ON_MATRICES = {
    "cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
    "cholesky of one matrix": lambda x: jnp.linalg.cholesky(positive(x[0])),
    "gradient of cholesky": jax.grad(lambda x: jnp.linalg.cholesky(positive(x)).sum()),
    "triangular solve": lambda x: linalg.solve_triangular(positive(x[0]), x[1], lower=True, trans=1),
    "solve by cholesky": lambda x: jax.vmap(lambda a: linalg.cho_solve(linalg.cho_factor(positive(a)), a[:, :2]))(x),
    "lu": linalg.lu_factor,
    "lu of one matrix": lambda x: linalg.lu(x[0]),
    "lu of wide and of tall matrices": lambda x: (lax.linalg.lu(x[:, :3]), lax.linalg.lu(x[..., :3])),
    # Blocks of columns.
    "lu of large matrices": lambda x: linalg.lu_factor(jnp.tile(x[:2], (1, 25, 30)) + LARGE),
    "lu of empty matrices": lambda x: (lax.linalg.lu(x[:, :0]), lax.linalg.lu(x[..., :0]), jnp.linalg.det(x[:, :0, :0])),
    "lu of singular matrices": lambda x: jnp.linalg.det(x.at[1, :, 2].set(0).at[2, 3].set(x[2, 4])),
    "lu of complex matrices": lambda x: (lambda lu: (lu.real, lu.imag))(linalg.lu_factor(x + 1j * x[::-1])[0]),
    "inverse": lambda x: jnp.linalg.inv(positive(x)),
    "solve": lambda x: jnp.linalg.solve(positive(x), x[..., :2]),
    "determinant": lambda x: (jnp.linalg.det(x), jnp.linalg.slogdet(x)),
    "gradient of inverse and determinant": jax.grad(lambda x: jnp.linalg.inv(positive(x)).sum() + jnp.linalg.slogdet(positive(x))[1].sum()),
    # Vectors have any sign.
    "qr": lambda x: jnp.abs(jnp.linalg.qr(x)[1]),
    "qr of wide matrices, complete": lambda x: jnp.abs(jnp.linalg.qr(x[:, :4], mode="complete")[0]),
    "eigh": lambda x: jnp.linalg.eigh(positive(x))[0],
    "eigenvectors": lambda x: jnp.einsum("bij,bj,bkj->bik", *(lambda w, v: (v, jnp.log(w), v))(*jnp.linalg.eigh(positive(x)))),
}


# By JAX 0.6.2's own XLA the sums of one of eight rows are a unit away.
TOLERANCES = {"float8 e4m3": 2e-3} if jax.__version_info__ < (0, 7) else {}


def compare(function, x, tolerance=2e-4):
    def step(state, batch):
        return state, function(batch * state)

    state = np.float32(1.5)
    wanted = jax.jit(step)(state, x)
    parallel = minka.parallelize(step)
    now = parallel(state, x)
    assert_close(now, wanted, tolerance=tolerance)
    return parallel.plan.json


@pytest.mark.parametrize("name", ON_ROWS)
def test_as_by_jax(devices, name):
    compare(ON_ROWS[name], ROWS, TOLERANCES.get(name, 2e-4))


@pytest.mark.parametrize("name", ON_MATRICES)
def test_linear_algebra_as_by_jax(devices, name):
    plan = compare(ON_MATRICES[name], MATRICES)
    assert plan["unsupported_ops"] == {}


@pytest.mark.parametrize("name, function, why", [
    ("svd", lambda x: jnp.linalg.svd(x)[1], r"calls LAPACK \(lapack_sgesdd_ffi\), which no device has: .* compute this outside of it"),
    ("eig", lambda x: jnp.abs(jnp.linalg.eig(x)[0]), r"calls LAPACK \(lapack_sgeev_ffi\)"),
    ("pure_callback", lambda x: jax.pure_callback(lambda y: np.asarray(y), jax.ShapeDtypeStruct(x.shape, x.dtype), x),
     r"calls back into Python \(.*\), which runs on no other device"),
])
def test_what_devices_do_not_have_is_refused_with_its_line(devices, name, function, why):
    line = inspect.getsourcelines(function)[1]
    with pytest.raises(minka.Error, match=rf"(?s)test_odd_programs.py:{line}: .*{name}.* {why}") as raised:
        compare(function, MATRICES)
    assert raised.value.code in ("INVALID_ARGUMENT", "UNIMPLEMENTED")
    assert re.match(r"\S", str(raised.value))


@pytest.mark.parametrize("method", [minka.Shard(), minka.DataParallel()])  # which splits what minima are over
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_not_a_number_is_handed_on(devices, method, dtype):
    holed = ROWS.astype(dtype)
    holed[::2, ::3] = np.nan
    weights = np.ones(16, dtype)

    def step(w, x):
        return w * 2, [jnp.max(x * w, 1), jnp.max(x, 0), jnp.min(x, 0), jnp.max(-x[:, 1:3], 0), jnp.maximum(x, 0.5), jnp.clip(x, 0, 1), jax.nn.softmax(x)]

    for ours, jax_s in zip(minka.parallelize(step, method=method)(weights, holed)[1], step(weights, holed)[1]):
        np.testing.assert_allclose(np.asarray(ours).astype(np.float32), jax_s.astype(np.float32), rtol=2e-2 if dtype == jnp.bfloat16 else 1e-6)
