"""The job as a numpy loop."""

from __future__ import annotations

from experiments.benchmark.jobs.laps import Laps


def logistic(laps: Laps) -> float:
    import numpy as np

    from experiments.benchmark.jobs import digits

    laps.lap("imports")
    rng = np.random.default_rng(0)
    inputs, targets, test_inputs, test_targets = digits.load()
    laps.lap("problem")
    hot, everybody = np.eye(digits.CLASSES, dtype=np.float32)[targets], np.arange(digits.WORKERS)[:, None]

    def loss_and_gradient(w, x, y):
        """Of models `[n, 65, 10]` on samples `[n, m, 64]`, or of one model on all of them."""
        logits = x @ w[..., :-1, :] + w[..., -1:, :]
        logits -= logits.max(axis=-1, keepdims=True)
        size = np.exp(logits)
        total = size.sum(axis=-1, keepdims=True)
        losses = (np.log(total) - np.sum(logits * y, axis=-1, keepdims=True)).mean(axis=(-2, -1))
        error = (size / total - y) / x.shape[-2]
        slope = np.concatenate([np.swapaxes(x, -1, -2) @ error, error.sum(axis=-2, keepdims=True)], axis=-2)
        return losses + 0.5e-4 * np.sum(w**2, axis=(-1, -2)), slope + np.float32(1e-4) * w

    def one_round(w):
        chosen = rng.integers(0, digits.PER_WORKER, (digits.WORKERS, 16))
        _, gradient = loss_and_gradient(w, inputs[everybody, chosen], hot[everybody, chosen])
        half = w - np.float32(0.1) * gradient
        w = (half + np.roll(half, 1, axis=0) + np.roll(half, -1, axis=0)) / np.float32(3)
        middle = w.mean(axis=0)
        values, slopes = loss_and_gradient(middle, inputs, hot)
        right = np.argmax(test_inputs @ middle[:-1] + middle[-1], axis=-1) == test_targets
        record = values.mean(), np.sum(slopes.mean(axis=0) ** 2), np.sum((w - middle) ** 2) / digits.WORKERS, right.mean()
        return w, record

    w, history = np.zeros((digits.WORKERS, 65, digits.CLASSES), np.float32), []
    for _ in range(1_000):
        w, record = one_round(w)
        history.append(record)
    laps.lap("rounds")
    return float(history[-1][0])


if __name__ == "__main__":
    laps = Laps()
    laps.finish(logistic(laps))
