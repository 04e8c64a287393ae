"""The noise of messages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dsgd import checks
from dsgd.base import PyTree
from dsgd.clusters.quantity import require_number


@checks.arguments
@dataclass(frozen=True)
class MessageNoise:
    r"""Gaussian noise on the numbers of messages, for `Cluster.message_noise`: $\mathcal N(0, s^2)$
    on each floating-point number, independently.

    Args:
        std: s, at least 0.
        snr: in place of `std`, the ratio of signal to noise in decibel: the numbers of a message x
            of d numbers have noise with $s^2 = \frac{|x|^2}{d} 10^{-\mathrm{SNR} / 10}$.

    Raises:
        ValueError: if not exactly one of them is given, `std` is negative, or it is infinite or
            NaN.
    """

    std: float | None = None
    snr: float | None = None

    def __post_init__(self) -> None:
        if (self.std is None) == (self.snr is None):
            raise ValueError(
                f"MessageNoise: std = {self.std}, snr = {self.snr}; expected one of them"
            )
        if self.std is not None:
            require_number("MessageNoise: std", self.std, least=0)
        if self.snr is not None:
            require_number("MessageNoise: snr", self.snr, least=-math.inf)

    @property
    def name(self) -> str:
        """A description that contains all parameters."""
        return f"std {self.std:.9g}" if self.std is not None else f"SNR {self.snr:.9g} dB"

    @property
    def absent(self) -> bool:
        """Whether messages have no noise."""
        return self.std == 0

    def variances(self, tree: PyTree) -> jax.Array:
        """Returns $s^2$ for each worker's message, `[n]`.

        Args:
            tree: the messages, leaves `[n, ...]`.
        """
        leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
        kind = jnp.result_type(*leaves, jnp.float32)
        rows = [leaf.reshape(leaf.shape[0], -1).astype(kind) for leaf in leaves]
        if self.std is not None:
            return jnp.full(rows[0].shape[0], self.std**2, kind)
        assert self.snr is not None
        numbers = jnp.concatenate(rows, axis=1)
        return 10 ** (-self.snr / 10) * jnp.sum(numbers**2, axis=1) / max(1, numbers.shape[1])
