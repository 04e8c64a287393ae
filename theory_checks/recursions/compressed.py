"""Methods that send compressed gradients through N servers or around a ring, and deterministic
compressors.

Workers and servers hold parts: each layer of a vector is split into N equal parts, padded with
zeros, and server n holds the n-th part of every layer. Each part is compressed separately,
including its padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from theory_checks.recursions.shared import Gradients, Rounds, Step, at_one

Q = Callable[[np.ndarray], np.ndarray]  # of one vector


def shard(x: np.ndarray, N: int) -> np.ndarray:
    """Splits a vector into N equal parts, the last padded with zeros: `[d]` to `[N, part]`."""
    return np.pad(x, (0, -len(x) % N)).reshape(N, -1)


def unshard(parts: np.ndarray, d: int) -> np.ndarray:
    """Joins the parts of a vector: `[..., N, part]` to `[..., d]`."""
    return parts.reshape(*parts.shape[:-2], -1)[..., :d]


class Parts:
    """Partition of a vector over N servers: each server holds a part of every layer, concatenated.

    Args:
        layers: number of elements of each layer; a single layer if the model is compressed as one
            vector.
        N: number of servers.
    """

    def __init__(self, layers: Sequence[int], N: int) -> None:
        self.layers: tuple[int, ...] = tuple(layers)
        self.N: int = N
        self._ends = np.cumsum(self.layers)[:-1]
        self._part_ends = np.cumsum([-(-size // N) for size in self.layers])[:-1]

    def shard(self, x: np.ndarray) -> np.ndarray:
        """Splits a vector: `[d]` to `[N, part]`."""
        return np.concatenate([shard(layer, self.N) for layer in np.split(x, self._ends)], axis=1)

    def unshard(self, parts: np.ndarray) -> np.ndarray:
        """Joins the parts: `[..., N, part]` to `[..., d]`."""
        each = np.split(parts, self._part_ends, axis=-1)
        return np.concatenate(
            [unshard(part, size) for part, size in zip(each, self.layers, strict=True)], axis=-1
        )

    def each(self, q: Q) -> Q:
        """Returns the compressor of a part that compresses each of its layers separately."""
        return lambda part: np.concatenate([q(piece) for piece in np.split(part, self._part_ends)])


Exchange = Callable[[np.ndarray, Q, Parts], np.ndarray]


def through_servers(gradients: np.ndarray, q: Q, cutting: Parts) -> np.ndarray:
    """Sends part n to server n, which averages it and sends the mean to all workers: `[N, d]` to
    `[d]`.

    Source: Liu and Zhang, (3.4).
    """
    N, q = cutting.N, cutting.each(q)
    parts = [cutting.shard(g) for g in gradients]
    answers = []
    for server in range(N):
        received = [q(parts[n][server]) for n in range(N)]
        answers.append(q(np.mean(received, axis=0)))
    return cutting.unshard(np.array(answers))


def around_ring(gradients: np.ndarray, q: Q, cutting: Parts) -> np.ndarray:
    """Sends part n around the ring from worker n; every worker adds its own part, and the sum is
    divided by N: `[N, d]` to `[d]`.

    Source: Liu and Zhang, (3.5), there without 1/N.
    """
    N, q = cutting.N, cutting.each(q)
    parts = [cutting.shard(g) for g in gradients]
    sums = []
    for start in range(N):
        message = q(parts[start][start])
        for hop in range(1, N):
            message = q(message + parts[(start + hop) % N][start])
        sums.append(message)
    return cutting.unshard(np.array(sums) / N)


def csgd(
    x: np.ndarray, G: Gradients, step: Step, exchange: Exchange, q: Q, cutting: Parts
) -> Rounds:
    """A step along the result of the exchange.

    Source: Liu and Zhang, (3.6).
    """
    t = 0
    while True:
        x = x + step(exchange(at_one(G, t, x, cutting.N), q, cutting))
        t += 1
        yield {"x": x}


def double_squeeze(
    x: np.ndarray, G: Gradients, step: Step, up: Q, down: Q, cutting: Parts
) -> Rounds:
    """DoubleSqueeze with N servers that hold one part each, instead of the single server of the
    equations.

    Source: Liu and Zhang, (3.10) to (3.14).
    """
    N, up, down, t = cutting.N, cutting.each(up), cutting.each(down), 0
    delta_server = np.zeros_like(cutting.shard(x))
    delta_worker = np.zeros((N, *delta_server.shape))
    while True:
        g = at_one(G, t, x, N)
        v_worker = np.array([cutting.shard(g[n]) + delta_worker[n] for n in range(N)])  # (3.10)
        sent = np.array([[up(v_worker[n][server]) for server in range(N)] for n in range(N)])
        delta_worker = v_worker - sent  # (3.11)
        v_server = np.mean(sent, axis=0) + delta_server  # (3.12)
        answer = np.array([down(v_server[server]) for server in range(N)])
        delta_server = v_server - answer  # (3.13)
        x = x + step(cutting.unshard(answer))  # (3.14)
        t += 1
        yield {
            "x": x,
            "delta_worker": cutting.unshard(delta_worker),
            "delta_server": cutting.unshard(delta_server),
        }


def ef21(x: np.ndarray, G: Gradients, step: Step, up: Q, down: Q, cutting: Parts) -> Rounds:
    """EF21 with one compressor for each direction and weights 1/N. At the start, x equals its
    estimator. The model's estimator is updated at the end of a round instead of at the start of the
    next one.

    Source: Algorithm 3 of Kimad: EF21 in both directions; see `recursions.kimad` for one server and
    compressors that change.
    """
    N, up, down, t = cutting.N, cutting.each(up), cutting.each(down), 0
    x = x_hat = cutting.shard(x)
    u_hat = np.zeros((N, *x.shape))
    while True:
        g = at_one(G, t, cutting.unshard(x_hat), N)  # line 9
        for m in range(N):
            u = cutting.shard(g[m])
            # lines 11 to 14
            u_hat[m] = u_hat[m] + np.array(
                [up(u[server] - u_hat[m][server]) for server in range(N)]
            )
        x = x + step(u_hat.mean(axis=0))  # line 15
        # lines 5 to 8
        x_hat = x_hat + np.array([down(x[server] - x_hat[server]) for server in range(N)])
        t += 1
        yield {
            "x": cutting.unshard(x),
            "x_hat": cutting.unshard(x_hat),
            "u_hat": cutting.unshard(u_hat),
        }


class Layers:
    """A vector that consists of a layer of biases, `[d - inputs outputs]`, and the kernel of a
    dense layer, `[inputs, outputs]`, row by row.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs: int = inputs
        self.outputs: int = outputs

    def split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the biases, `[..., d - inputs outputs]`, and the kernel's matrix, whose rows are
        the output features: `[..., outputs, inputs]`.
        """
        size = self.inputs * self.outputs
        kernel = x[..., -size:].reshape(*x.shape[:-1], self.inputs, self.outputs)
        return x[..., :-size], np.swapaxes(kernel, -1, -2)

    def join(self, biases: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Returns the vector of these two layers."""
        return np.concatenate([biases, matrix.T.ravel()])


def gram_schmidt(matrix: np.ndarray) -> np.ndarray:
    """Orthonormalizes columns, one after the other."""
    basis: list[np.ndarray] = []
    for column in matrix.T:
        rest = column - sum((b @ column) * b for b in basis)
        basis.append(rest / np.linalg.norm(rest))
    return np.stack(basis, axis=1)


def powersgd(
    x: np.ndarray, G: Gradients, step: Step, layers: Layers, N: int, Q: np.ndarray
) -> Rounds:
    """PowerSGD with error feedback, from the right factor Q `[inputs, r]`. Biases make the same
    step with the mean gradient.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD", algorithms 1 and 2.
    """
    e, t = np.zeros((N, layers.outputs, layers.inputs)), 0
    while True:
        biases, D = layers.split(at_one(G, t, x, N))
        D = D + e
        P = gram_schmidt(np.mean([D[n] @ Q for n in range(N)], axis=0))
        Q = np.mean([D[n].T @ P for n in range(N)], axis=0)
        delta = P @ Q.T
        e = np.array([D[n] - delta for n in range(N)])
        x = x + step(layers.join(biases.mean(axis=0), delta))
        t += 1
        # the columns of P and Q are determined up to their sign
        yield {"x": x, "e": e, "Q Q^T": Q @ Q.T}


def dion(
    x: np.ndarray,
    G: Gradients,
    step: Step,
    layers: Layers,
    N: int,
    Q: np.ndarray,
    mu: float,
) -> Rounds:
    """Dion, from the right factor Q `[inputs, r]`. Biases make the same step with the mean
    gradient.

    Source: Ahn, Xu, Abreu and Langford, "Dion"; microsoft/dion, `dion_simple.py`.
    """
    M, t = np.zeros((N, layers.outputs, layers.inputs)), 0
    while True:
        biases, gradients = layers.split(at_one(G, t, x, N))
        M = M + gradients
        P = gram_schmidt(np.mean([M[n] @ Q for n in range(N)], axis=0))
        R = np.mean([M[n].T @ P for n in range(N)], axis=0)
        M = np.array([M[n] - (1 - mu) * P @ R.T for n in range(N)])
        Q = R / (np.sqrt(np.sum(R**2, axis=0)) + 1e-8)
        direction = np.sqrt(layers.outputs / layers.inputs) * P @ Q.T
        x = x + step(layers.join(biases.mean(axis=0), direction))
        t += 1
        yield {"x": x, "M": M, "Q Q^T": Q @ Q.T}


def demo(
    x: np.ndarray, G: Gradients, gamma: float, N: int, beta: float, T: np.ndarray, Top: Q
) -> Rounds:
    """DeMo, with the mean over all workers.

    Args:
        x, G: the start, and the gradients.
        gamma: the step size, with which gradients enter the momentum, and of the step.
        N: number of workers.
        beta: decay of the momentum.
        T: the chunked DCT-II as an orthogonal matrix, `[d, d]`.
        Top: keeps the largest coefficients of each chunk.

    Source: Peng, Quesnelle and Kingma, "DeMo", algorithm 1.
    """
    m, t = np.zeros((N, len(x))), 0
    while True:
        m = beta * m + gamma * at_one(G, t, x, N)
        q = np.array([Top(T @ m[n]) for n in range(N)])
        m = m - q @ T
        x = x - gamma * np.sign(T.T @ q.mean(axis=0))
        t += 1
        yield {"x": x, "m": m}


def dgc(
    x: np.ndarray,
    G: Gradients,
    step: Step,
    N: int,
    m: float,
    masks: Callable[[int], Callable[[np.ndarray], np.ndarray]],
    theta: float,
    nesterov: bool,
    masking: bool,
) -> Rounds:
    """Deep gradient compression.

    Args:
        masks: t -> the function from v to the mask of the elements that are sent in round t.
        theta: threshold of the local clipping.
        nesterov: whether momentum is Nesterov's.
        masking: whether the momentum of sent elements is set to 0.

    Source: Lin, Han, Mao, Wang and Dally, "Deep gradient compression", section 3.
    """
    u, v, t = np.zeros((N, len(x))), np.zeros((N, len(x))), 0
    while True:
        g = at_one(G, t, x, N)
        lengths = np.sqrt(np.sum(g**2, axis=1, keepdims=True))
        g = g * np.minimum(1, theta * N**-0.5 / lengths)
        u = m * (u + g) if nesterov else m * u + g
        v = v + u + g if nesterov else v + u
        M = np.array([masks(t)(v[n]) for n in range(N)])
        x = x + step((v * M).mean(axis=0))
        v = v * ~M
        u = u * ~M if masking else u
        t += 1
        yield {"x": x, "u": u, "v": v}


def cser(X: np.ndarray, G: Gradients, step: Step, H: int, C1: Q, C2: Q) -> Rounds:
    """CSER. The step, with the sign of a gradient, is what the workers synchronize partially.

    Source: Xie et al., "CSER", 2020.
    """

    def psync(v, C):
        sent = np.array([C(each) for each in v])
        return sent.mean(axis=0) + v - sent, v - sent

    e, t = np.zeros_like(X), 0
    while True:
        p, r = psync(-step(G(t, X)), C2)
        X, e = X - p, e - r
        t += 1
        if t % H == 0:
            moved, r = psync(e, C1)
            X, e = X - e + moved, r
        yield {"params": X, "error": e}


def dct(c: int) -> np.ndarray:
    """Returns the orthonormal DCT-II of c elements, `[c, c]`."""
    T = np.array([[np.cos(np.pi * (2 * j + 1) * m / (2 * c)) for j in range(c)] for m in range(c)])
    return T / np.linalg.norm(T, axis=1, keepdims=True)


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Returns x with all but the k largest elements set to 0; of equal elements, the first are
    kept.
    """
    places = sorted(range(len(x)), key=lambda i: (-abs(x[i]), i))[:k]
    return np.array([x[i] if i in places else 0.0 for i in range(len(x))])


def largest_half(x: np.ndarray) -> np.ndarray:
    """Keeps half of the elements, rounded up (`compressors.top_k(0.5)`)."""
    return largest(x, -(-len(x) // 2))


def mean_size_times_sign(x: np.ndarray) -> np.ndarray:
    """Returns signs times the mean magnitude (`compressors.sign`)."""
    return np.mean(np.abs(x)) * np.where(x < 0, -1, 1)


def clipped(x: np.ndarray) -> np.ndarray:
    """Keeps the sign, 8 bits of exponent and 3 of mantissa (`compressors.clipping(3)`)."""
    return (x.astype(np.float32).view(np.uint32) >> 20 << 20).view(np.float32).astype(float)


def quantize(x: np.ndarray, bits: int, rng: np.random.Generator) -> np.ndarray:
    """Rounds at random to 2^bits equidistant knobs from min(x) to max(x).

    Source: Liu and Zhang, (3.3).
    """
    knobs = np.linspace(x.min(), x.max(), 2**bits)
    sent = []
    for element in x:
        lower = max((knob for knob in knobs if knob <= element), default=knobs[0])
        upper = min((knob for knob in knobs if knob >= element), default=knobs[-1])
        share = 0 if upper == lower else (element - lower) / (upper - lower)
        sent.append(upper if rng.uniform() < share else lower)
    return np.array(sent)


def packed(width: int, count: int) -> int:
    """Returns the number of bits of `count` codes of this width, packed in planes of 8, 4, 2 and 1
    bits, each of whole bytes.
    """
    planes = [8] * (width // 8) + [plane for plane in (4, 2, 1) if width & plane]
    return sum(8 * math.ceil(count * plane / 8) for plane in planes)
