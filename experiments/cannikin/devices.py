r"""The machines of Cannikin's clusters A, B and C, and how long its models take on them: every
number, with its source.

From the paper: which GPUs are in which cluster (tables 2 and 3), FP16 peaks of the A100 and the
V100 (table 1), that an A100 is 3.42 times as fast as an RTX 6000, and cluster C's shares from 1 to
1/4 (section 6); models, their parameters and first batches (table 4). From data sheets:
single-precision peaks, memory, and its bandwidth. From other papers: operations of a sample, ranges
of batches. Assumed, and so marked: what share of a peak is reached, seconds of a kernel's launch,
links, how buckets lie in the backward pass, memory of a sample. Nothing is fitted to the paper's
results.

Of a node with the peak F, memory that moves M bytes/s, and a model of p parameters with f
operations forward, twice as many backward:

$$ q = \frac{f}{\eta F}, \quad k = 2 q, \quad s = \tau\,l + \frac{4 r p}{M}, \quad m = 2 \tau\,l,
\quad T_{comm} = \frac{2 (n - 1)}{n} \frac{32 p}{\text{link}} $$

for l kernels and an optimiser that reads and writes r numbers for each parameter. Data are loaded
meanwhile (assumed).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from algorithms.cannikin import ClusterModel
from dsgd import clusters

REACHED = 0.4  # eta, of single precision's peak: assumed, for all GPUs and models
LAUNCH = 1e-5  # tau, seconds of a kernel that PyTorch launches: assumed
LINK = 1e10  # bits per second between nodes: 10 Gbit Ethernet, assumed; of it, a ring has all
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # bytes: defaults of PyTorch's DistributedDataParallel


class GPU(NamedTuple):
    """A node.

    Args:
        name: of its kind.
        peak: operations per second.
        bandwidth: bytes per second of its memory.
        memory: bytes.
    """

    name: str
    peak: float
    bandwidth: float
    memory: float

    def shared(self, share: float) -> GPU:
        """The same with a share of everything."""
        return GPU(
            f"{self.name} x {share:.2f}",
            share * self.peak,
            share * self.bandwidth,
            share * self.memory,
        )


# Data sheets (NVIDIA): single precision, memory's bandwidth, memory.
A5000 = GPU("RTX A5000", 27.8e12, 768e9, 24e9)
A4000 = GPU("RTX A4000", 19.2e12, 448e9, 16e9)
P4000 = GPU("Quadro P4000", 5.3e12, 243e9, 8e9)
RTX6000 = GPU("RTX 6000", 16.3e12, 672e9, 24e9)
# The A100's peak is 3.42 times the RTX 6000's (section 6), the V100's is to it as in table 1.
# Memory: data sheets, of the smaller version.
A100 = GPU("A100", 3.42 * RTX6000.peak, 1555e9, 40e9)
V100 = GPU("V100", 31.4 / 77.97 * A100.peak, 900e9, 16e9)

CLUSTERS: dict[str, list[GPU]] = {
    "A": [A5000, A4000, P4000],
    "B": 4 * [A100] + 4 * [V100] + 8 * [RTX6000],
    "C": [RTX6000.shared(share) for share in np.linspace(1, 1 / 4, 16)],
}


class Workload(NamedTuple):
    """What is trained.

    Args:
        parameters: p, table 4.
        operations: f, of a sample, forward; two for a multiplication and an addition.
        kernels: l, forward: counted from the layers, roughly.
        optimizer: r, numbers read and written for each parameter: 5 of SGD with momentum, 7 of
            Adam.
        activations: bytes that a sample keeps until its backward pass: assumed.
        first_batch: B_0, table 4.
        last_batch: the largest of all nodes: the limits of AdaptDL's benchmark ("Pollux", 2021), as
            far as there is memory.
        samples: of an epoch: ImageNet, CIFAR-10, LibriSpeech's 960 hours, SQuAD 1.1, MovieLens 1M
            with 4 negatives for each rating.
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
        """Bytes of each, one after the other."""
        left = 4 * self.parameters - FIRST_BUCKET
        return np.array([FIRST_BUCKET] + int(left // BUCKET) * [BUCKET] + [left % BUCKET])

    @property
    def first(self) -> float:
        """gamma: all buckets take as much of the backward pass (assumed, as section 3.2.3 does of
        those behind the first).
        """
        return 1 / len(self.buckets)

    @property
    def last(self) -> float:
        """T_u / T_comm."""
        return float(self.buckets[-1] / self.buckets.sum())


# Operations: ResNet-50, 3.8e9 multiplications (He et al., table 1); ResNet-18 for 32 x 32 pixels,
# 0.56e9 of them; BERT base, 85e6 weights without embeddings, for each of 384 tokens; DeepSpeech2,
# all weights, for each of 615 steps: 12.3 s of LibriSpeech's mean utterance at 100 frames a second,
# every other one; NeuMF, layers of 256, 128, 64 and 32 (AdaptDL's benchmark). DeepSpeech2's five
# recurrent layers launch a kernel at every step. Activations of BERT: those of Korthikanti et al.
# (2022) in single precision.
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
    """Of the cluster, by which its times are exactly known.

    Args:
        name: "A", "B" or "C".
        workload: of `WORKLOADS`.
    """
    return model_of(CLUSTERS[name], WORKLOADS[workload])


def model_of(gpus: list[GPU], workload: Workload) -> ClusterModel:
    """The same of any nodes.

    Args:
        gpus: the nodes.
        workload: what is trained.
    """
    n, p = len(gpus), workload.parameters
    peak, bandwidth, memory = (
        np.array([getattr(gpu, name) for gpu in gpus]) for name in ("peak", "bandwidth", "memory")
    )
    q = workload.operations / (REACHED * peak)
    launches = np.full(n, LAUNCH * workload.kernels)
    s = launches + 4 * workload.optimizer * p / bandwidth
    T_comm = 2 * (n - 1) / n * 32 * p / LINK
    # weights and gradients, and one state of momentum or two of Adam
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
    """The simulated cluster that takes as long: for a smaller model than the workload's its links
    are as much slower.

    Args:
        name: "A", "B" or "C".
        workload: of `WORKLOADS`, whose times are those of the cluster.
        parameters: of the model that is trained instead, whose gradients it sends in float32; None:
            the workload's own.
        noise: nu, of what nodes measure.
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
    """Total batches from the first, or two samples a node, to the last for which all have memory at
    equal parts, evenly in their logarithm.

    Args:
        name: "A", "B" or "C".
        workload: of `WORKLOADS`.
        count: how many.
    """
    return batches_of(make_model(name, workload), WORKLOADS[workload], count)


def batches_of(model: ClusterModel, workload: Workload, count: int) -> np.ndarray:
    """The same of any nodes.

    Args:
        model: of them.
        workload: what is trained.
        count: how many.
    """
    n, limits = model.nodes, np.asarray(model.limits)
    first, last = max(workload.first_batch, 2 * n), min(workload.last_batch, n * int(limits.min()))
    return np.unique(np.round(np.geomspace(first, last, count)).astype(int))
