"""Provisional."""


def threshold(latencies, communication, stop="preempt"):  # noqa: ANN201
    return latencies.sum(-1).mean()
