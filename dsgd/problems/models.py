"""Models in flax, with their numbers of parameters. They use no batch norm: its running averages
would differ by worker, and they are not part of the model that methods average.
"""

from __future__ import annotations

import jax
import numpy as np
from flax import linen as nn

from dsgd import xla


class MLP(nn.Module):
    """A multilayer perceptron: fully connected layers with ReLU between them. It has 4,810
    parameters for digits (64 inputs, 10 classes) and 197,322 for CIFAR-10.

    Args:
        classes: number of logits.
        hidden: widths of the hidden layers.
    """

    classes: int
    hidden: tuple[int, ...] = (64,)

    @nn.compact
    def __call__(self, x: jax.Array | np.ndarray) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


class Convolution(nn.Module):
    """A convolution with zero padding, which keeps the image size at stride 1. The kernel is stored
    as a matrix, `[size^2 channels, features]`.

    Args:
        features: number of output channels.
        stride: stride in both directions.
        size: side of the kernel in pixels, odd.
        bias: whether a bias is added.
    """

    features: int
    stride: int = 1
    size: int = 3
    bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array | np.ndarray) -> jax.Array:
        channels = x.shape[-1]
        kernel = self.param(
            "kernel", nn.initializers.lecun_normal(), (self.size**2 * channels, self.features)
        )
        y = xla.convolve(
            x, kernel.reshape(self.size, self.size, channels, self.features), self.stride
        )
        if not self.bias:
            return y
        return y + self.param("bias", nn.initializers.zeros, (self.features,))[None, None, None, :]


class CNN(nn.Module):
    """A convolutional network: 3x3 convolutions, each followed by GroupNorm and ReLU, with stride 2
    from the second one on; then the mean over pixels and a linear layer. It has 5,514 parameters
    for CIFAR-10.

    Args:
        classes: number of logits.
        channels: number of channels of each convolution.
        groups: number of groups of GroupNorm.
    """

    classes: int
    channels: tuple[int, ...] = (16, 32)
    groups: int = 4

    @nn.compact
    def __call__(self, x: jax.Array | np.ndarray) -> jax.Array:
        for i, width in enumerate(self.channels):
            x = Convolution(width, stride=1 if i == 0 else 2)(x)
            x = nn.relu(nn.GroupNorm(num_groups=self.groups)(x))
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


class ResidualBlock(nn.Module):
    """A residual block, relu(x + F(x)), where F is two 3x3 convolutions with GroupNorm and ReLU. If
    F changes the shape, x passes through a 1x1 convolution with GroupNorm.

    Args:
        features: number of output channels.
        stride: stride of the first convolution.
        groups: number of groups of GroupNorm.
    """

    features: int
    stride: int
    groups: int

    @nn.compact
    def __call__(self, x: jax.Array | np.ndarray) -> jax.Array:
        y = Convolution(self.features, self.stride, bias=False)(x)
        y = nn.relu(nn.GroupNorm(num_groups=self.groups)(y))
        y = Convolution(self.features, bias=False)(y)
        y = nn.GroupNorm(num_groups=self.groups)(y)
        if x.shape != y.shape:
            x = Convolution(self.features, self.stride, size=1, bias=False)(x)
            x = nn.GroupNorm(num_groups=self.groups)(x)
        return nn.relu(x + y)


class ResNet18(nn.Module):
    """ResNet-18 for CIFAR-10 (a 3x3 stem and no pooling before the blocks) with GroupNorm; it has
    11,173,962 parameters for CIFAR-10.

    Args:
        classes: number of logits.
        width: number of channels of the first of the four stages; each following stage has twice as
            many.
        groups: number of groups of GroupNorm.

    Source: He et al., Deep residual learning for image recognition, 2016; Wu and He, Group
    normalization, 2018.
    """

    classes: int
    width: int = 64
    groups: int = 32

    @nn.compact
    def __call__(self, x: jax.Array | np.ndarray) -> jax.Array:
        x = Convolution(self.width, bias=False)(x)
        x = nn.relu(nn.GroupNorm(num_groups=self.groups)(x))
        for stage in range(4):
            for block in range(2):
                x = ResidualBlock(
                    2**stage * self.width,
                    stride=2 if stage and not block else 1,
                    groups=self.groups,
                )(x)
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


class Transformer(nn.Module):
    """A decoder-only transformer for bytes: pre-norm blocks of causal attention and an MLP four
    times as wide; it has 137,216 parameters.

    Tokens `[m, T]`, integers below `vocabulary`, are mapped to logits `[m, T, vocabulary]` of the
    next tokens; T is at most `context`.

    Args:
        vocabulary: number of tokens.
        context: largest T; each position has a learned embedding.
        width: dimension of the embeddings.
        layers: number of blocks.
        heads: number of attention heads, a divisor of the width.

    Source: Vaswani et al., Attention is all you need, 2017; Radford et al., Language models are
    unsupervised multitask learners, 2019.
    """

    vocabulary: int = 256
    context: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4

    @nn.compact
    def __call__(self, tokens: jax.Array | np.ndarray) -> jax.Array:
        length = tokens.shape[-1]
        if length > self.context:
            raise ValueError(
                f"Transformer: sequences of {length} tokens; expected at most context = "
                f"{self.context}"
            )
        small = nn.initializers.normal(0.02)
        positions = self.param("positions", small, (self.context, self.width))
        x = nn.Embed(self.vocabulary, self.width)(tokens) + positions[None, :length]
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.layers):
            x += nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x), mask=mask)
            x += nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        # Small weights, so that the initial predictions are nearly uniform.
        return nn.Dense(self.vocabulary, kernel_init=small)(nn.LayerNorm()(x))


MODELS: dict[str, type[nn.Module]] = {"mlp": MLP, "cnn": CNN, "resnet-18": ResNet18}
