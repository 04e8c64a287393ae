r"""The machines of Cannikin's clusters A, B and C, and the compute times of its models on them,
with the source of every number.

From the paper: the GPUs of each cluster (tables 2 and 3), FP16 peaks of the A100 and the V100
(table 1), the speed of an A100, which is 3.42 times that of an RTX 6000, and cluster C's shares
from 1 to 1/4 (section 6); models, their parameters and first batches (table 4). From data sheets:
single-precision peaks, memory, and its bandwidth. From other papers: operations of a sample, ranges
of batches. Assumed, and marked as such: the share of a peak that is reached, seconds of a kernel's
launch, links, the order of buckets in the backward pass, memory of a sample. Nothing is fitted to
the paper's results.

For a node with peak F whose memory transfers M bytes/s, and a model of p parameters with f
operations in the forward pass and twice as many in the backward pass:

$$ q = \frac{f}{\eta F}, \quad k = 2 q, \quad s = \tau\,l + \frac{4 r p}{M}, \quad m = 2 \tau\,l,
\quad T_{comm} = \frac{2 (n - 1)}{n} \frac{32 p}{\text{link}} $$

for l kernels and an optimizer that reads and writes r numbers for each parameter. Data are loaded
at the same time (assumed).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from algorithms.cannikin import ClusterModel
from dsgd import clusters

REACHED = 0.4  # eta, relative to the single-precision peak: assumed, for all GPUs and models
LAUNCH = 1e-5  # tau, seconds to launch a kernel from PyTorch: assumed
LINK = 1e10  # bits per second between nodes: 10 Gbit Ethernet, assumed; a ring uses all of it
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # bytes: defaults of PyTorch's DistributedDataParallel


class GPU(NamedTuple):
    """A GPU, which is one node.

    Args:
        name: model name.
        peak: operations per second.
        bandwidth: bytes per second of its memory.
        memory: bytes.
    """

    name: str
    peak: float
    bandwidth: float
    memory: float

    def scale(self, share: float) -> GPU:
        """Returns a node with this share of all resources."""
        return GPU(
            f"{self.name} x {share:.2f}",
            share * self.peak,
            share * self.bandwidth,
            share * self.memory,
        )


# Data sheets (NVIDIA): single precision, memory bandwidth, memory.
A5000 = GPU("RTX A5000", 27.8e12, 768e9, 24e9)
A4000 = GPU("RTX A4000", 19.2e12, 448e9, 16e9)
P4000 = GPU("Quadro P4000", 5.3e12, 243e9, 8e9)
RTX6000 = GPU("RTX 6000", 16.3e12, 672e9, 24e9)
# The A100's peak is 3.42 times the RTX 6000's (section 6), and the V100's follows from the ratio in
# table 1. Memory: data sheets, of the smaller version.
A100 = GPU("A100", 3.42 * RTX6000.peak, 1555e9, 40e9)
V100 = GPU("V100", 31.4 / 77.97 * A100.peak, 900e9, 16e9)

CLUSTERS: dict[str, list[GPU]] = {
    "A": [A5000, A4000, P4000],
    "B": 4 * [A100] + 4 * [V100] + 8 * [RTX6000],
    "C": [RTX6000.scale(share) for share in np.linspace(1, 1 / 4, 16)],
}


class Workload(NamedTuple):
    """A model with its training set.

    Args:
        parameters: p, table 4.
        operations: f, operations of a sample in the forward pass; a multiplication and an addition
            are two.
        kernels: l, in the forward pass: estimated from the layers.
        optimizer: r, numbers read and written for each parameter: 5 for SGD with momentum, 7 for
            Adam.
        activations: bytes that a sample keeps until its backward pass: assumed.
        first_batch: B_0, table 4.
        last_batch: the largest total batch: the limits of AdaptDL's benchmark ("Pollux", 2021), if
            memory suffices.
        samples: samples of an epoch: ImageNet, CIFAR-10, LibriSpeech's 960 hours, SQuAD 1.1,
            MovieLens 1M with 4 negatives for each rating.
    """

    parameters: float
    operations: float
    kernels: int
    optimizer: int
    activations: float
    first_batch: int
    last_batch: int
    samples: int

    @property
    def buckets(self) -> np.ndarray:
        """Bytes of each bucket, in order."""
        left = 4 * self.parameters - FIRST_BUCKET
        return np.array([FIRST_BUCKET] + int(left // BUCKET) * [BUCKET] + [left % BUCKET])

    @property
    def first(self) -> float:
        """Returns gamma, the first bucket's share of the backward pass. All buckets take the same
        share (assumed, as section 3.2.3 does for all buckets except the first).
        """
        return 1 / len(self.buckets)

    @property
    def last(self) -> float:
        """Returns T_u / T_comm, the last bucket's share of the communication time."""
        return float(self.buckets[-1] / self.buckets.sum())


# Operations: ResNet-50, 3.8e9 multiplications (He et al., table 1); ResNet-18 for 32 x 32 pixels,
# 0.56e9 multiplications; BERT base, 85e6 weights without embeddings, for each of 384 tokens;
# DeepSpeech2, all weights, for each of 615 steps: 12.3 s of LibriSpeech's mean utterance at 100
# frames a second, every second one; NeuMF, layers of 256, 128, 64 and 32 (AdaptDL's benchmark).
# DeepSpeech2's five recurrent layers launch a kernel at every step. Activations of BERT:
# Korthikanti et al. (2022) in single precision.
WORKLOADS = {
    "ResNet-50": Workload(25.6e6, 7.6e9, 175, 5, 90e6, 100, 12_800, 1_281_167),
    "ResNet-18": Workload(11e6, 1.1e9, 65, 5, 9e6, 64, 4096, 50_000),
    "DeepSpeech2": Workload(52e6, 2 * 52e6 * 615, 5 * 615, 5, 150e6, 12, 640, 281_241),
    "BERT": Workload(110e6, 2 * 85e6 * 384, 300, 7, 450e6, 9, 384, 87_599),
    "NeuMF": Workload(
        5.2e6, 2 * (256 * 128 + 128 * 64 + 64 * 32), 12, 7, 4e3, 64, 32_768, 5_001_045
    ),
}


def make_model(name: str, workload: str) -> ClusterModel:
    """Returns the exact model of the cluster's times.

    Args:
        name: "A", "B" or "C".
        workload: a key of `WORKLOADS`.
    """
    return model_of(CLUSTERS[name], WORKLOADS[workload])


def model_of(gpus: list[GPU], workload: Workload) -> ClusterModel:
    """Returns the exact model of the times of any nodes.

    Args:
        gpus: the nodes.
        workload: the workload.
    """
    n, p = len(gpus), workload.parameters
    peak, bandwidth, memory = (
        np.array([getattr(gpu, name) for gpu in gpus]) for name in ("peak", "bandwidth", "memory")
    )
    q = workload.operations / (REACHED * peak)
    launches = np.full(n, LAUNCH * workload.kernels)
    s = launches + 4 * workload.optimizer * p / bandwidth
    T_comm = 2 * (n - 1) / n * 32 * p / LINK
    # weights, gradients, and one state for momentum or two for Adam
    kept = 4 * p * (workload.optimizer + 1) / 2
    limits = np.floor((memory - kept) / workload.activations)
    return ClusterModel(
        q,
        s,
        2 * q,
        2 * launches,
        workload.first,
        (1 - workload.last) * T_comm,
        workload.last * T_comm,
        limits,
    )


def make_cluster(
    name: str, workload: str, *, parameters: float | None = None, noise: float = 0.0
) -> clusters.Cluster:
    """Returns a simulated cluster with these times; if the trained model is smaller than the
    workload's, the links are slower by the same factor.

    Args:
        name: "A", "B" or "C".
        workload: a key of `WORKLOADS`, which determines the times of the cluster.
        parameters: number of parameters of the model that is trained instead, whose gradients are
            sent in float32; None: the workload's.
        noise: nu, noise of the nodes' measurements.
    """
    model, of = make_model(name, workload), WORKLOADS[workload]
    q, s, k, m = (np.asarray(each) for each in (model.q, model.s, model.k, model.m))
    return clusters.Cluster(
        clusters.constant(s + m),
        up=clusters.constant(LINK * (parameters or of.parameters) / of.parameters),
        per_sample=clusters.constant(q + k),
        single_batch=True,
        overlap=clusters.Overlap(
            clusters.constant(m), clusters.constant(k), first=of.first, last=of.last
        ),
        noise=noise,
    )


def batches(name: str, workload: str, count: int) -> np.ndarray:
    """Returns total batches with equal ratios, from the first one, or two samples per node, to the
    largest for which the memory of all nodes suffices with equal parts.

    Args:
        name: "A", "B" or "C".
        workload: a key of `WORKLOADS`.
        count: number of total batches.
    """
    return batches_of(make_model(name, workload), WORKLOADS[workload], count)


def batches_of(model: ClusterModel, workload: Workload, count: int) -> np.ndarray:
    """Returns total batches with equal ratios, as `batches`, for nodes with any model.

    Args:
        model: model of the nodes.
        workload: the workload.
        count: number of total batches.
    """
    n, limits = model.nodes, np.asarray(model.limits)
    first, last = max(workload.first_batch, 2 * n), min(workload.last_batch, n * int(limits.min()))
    return np.unique(np.round(np.geomspace(first, last, count)).astype(int))
