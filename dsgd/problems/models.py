"""Models in flax."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn


class MLP(nn.Module):
    """Fully connected layers with ReLU between them."""

    classes: int
    hidden: tuple[int, ...] = (64,)

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


class Convolution(nn.Module):
    """A 3x3 convolution with zeros around, as one product of the nine shifted images with the kernel.

    XLA's own convolution is ten times slower inside a loop on CPUs, where every round of a run is.
    """

    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        _, height, width, channels = x.shape
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifted = [padded[:, i : i + height : self.stride, j : j + width : self.stride] for i in range(3) for j in range(3)]
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (9 * channels, self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return jnp.concatenate(shifted, axis=-1) @ kernel + bias[None, None, None, :]


class CNN(nn.Module):
    """3x3 convolutions, each with GroupNorm, ReLU and stride 2 after the first; then the mean over places.

    GroupNorm has no running averages: batch norm's would differ from worker to worker, and are not part of the model that is averaged.
    """

    classes: int
    channels: tuple[int, ...] = (16, 32)
    groups: int = 4

    @nn.compact
    def __call__(self, x):
        for i, width in enumerate(self.channels):
            x = Convolution(width, stride=1 if i == 0 else 2)(x)
            x = nn.relu(nn.GroupNorm(num_groups=self.groups)(x))
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


MODELS = {"mlp": MLP, "cnn": CNN}
