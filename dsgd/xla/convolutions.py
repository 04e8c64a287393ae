"""Convolutions as one product of the shifted images with the kernel.

Inside a loop, and every round of a run is inside one, XLA on CPUs compiles convolutions to slow
code. Convolutions of several workers with different kernels are even slower. Without this file, the
results are the same up to the order of additions. On other platforms, XLA's own convolutions are
used.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): gradients of the CNN on four
workers with eight CIFAR images each are 17 times as fast with JAX 0.10.2, 15 times with 0.11.2.
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
    """Returns the convolution of images with zero padding, `[samples, height, width, channels]` to
    `[samples, ..., ..., features]`.

    Args:
        x: images.
        kernel: `[size, size, channels, features]`, with an odd size.
        stride: stride in both directions.
    """
    size = kernel.shape[0]
    around = (size // 2, size // 2)

    def plain(x, kernel):
        # In `shard_map`, JAX has no batching rule for several `vmap`s if some map only the kernels.
        # With this zero, which XLA removes, the images are mapped whenever the kernels are.
        zero = jnp.zeros((), x.dtype)
        x = x + jnp.where(kernel[0, 0, 0, 0] == 0, zero, zero)
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            (around, around),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def multiply_shifted_images(x, kernel):
        _, height, width, _ = x.shape
        padded = jnp.pad(x, ((0, 0), around, around, (0, 0)))
        places = [(i, j) for i in range(size) for j in range(size)]
        shifted = [padded[:, i : i + height : stride, j : j + width : stride] for i, j in places]
        return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])

    return choose(plain, multiply_shifted_images, x, kernel)
