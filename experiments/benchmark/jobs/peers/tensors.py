"""The job in PyTorch: all workers' models as one tensor."""

from __future__ import annotations

from typing import Any

from experiments.benchmark.jobs.peers import job


def build(what: job.Job) -> job.Run:
    import torch  # pyright: ignore[reportMissingImports]

    inputs, targets = map(torch.from_numpy, what.load())

    @torch.inference_mode()
    def run(rounds: int) -> Any:
        x = torch.zeros(inputs.shape[0], inputs.shape[-1], dtype=inputs.dtype)
        for _ in range(rounds):
            error = torch.sigmoid(torch.bmm(inputs, x[..., None])[..., 0]) - targets
            half = x - what.learning_rate / targets.shape[1] * torch.bmm(error[:, None], inputs)[:, 0]
            x = (half + torch.roll(half, 1, dims=0) + torch.roll(half, -1, dims=0)) / 3
        return x

    return run


if __name__ == "__main__":
    job.main(build, "torch", "numpy")
