"""Convolutions as one product of the shifted images with the kernel.

XLA on CPUs computes convolutions inside a loop, where every round of a run is, in slow code, and
convolutions of several workers, each with its own kernel, in slower code still. Without this file
the results are the same up to the order of additions. On other platforms XLA's own convolutions
run.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): gradients of the CNN on four
workers with eight CIFAR images each 17 times as fast with JAX 0.10.2, 15 with 0.11.2.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd.xla.forms import choose


def convolve(
    x: jax.Array | np.ndarray, kernel: jax.Array | np.ndarray, stride: int = 1
) -> jax.Array:
    """The convolution of images with zeros around them, `[samples, height, width, channels]` to
    `[samples, ..., ..., features]`.

    Args:
        x: images.
        kernel: `[size, size, channels, features]`, of an odd size.
        stride: between the places where it is computed.
    """
    size = kernel.shape[0]
    around = (size // 2, size // 2)

    def plain(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            (around, around),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def of_shifted_images(x, kernel):
        _, height, width, _ = x.shape
        padded = jnp.pad(x, ((0, 0), around, around, (0, 0)))
        places = [(i, j) for i in range(size) for j in range(size)]
        shifted = [padded[:, i : i + height : stride, j : j + width : stride] for i, j in places]
        return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])

    return choose(plain, of_shifted_images, x, kernel)
