"""The job in decent-bench: its own cost, network and methods, on numpy, which is its default for its own costs."""

from __future__ import annotations

from experiments.benchmark.jobs.peers import job


def build(what: job.Job) -> job.Run:
    import networkx as nx
    import numpy as np
    from decent_array import interoperability as arrays  # pyright: ignore[reportMissingImports]
    from decent_bench.agents import Agent  # pyright: ignore[reportMissingImports]
    from decent_bench.algorithms.p2p import ATC, ED, EXTRA  # pyright: ignore[reportMissingImports]
    from decent_bench.costs import LogisticRegressionCost  # pyright: ignore[reportMissingImports]
    from decent_bench.networks import P2PNetwork  # pyright: ignore[reportMissingImports]

    arrays.set_backend("numpy", "cpu")
    inputs, targets = what.load()
    rarely = 1 << 30  # in rounds: of snapshots there is only the last
    agents = []
    for mine, classes in zip(inputs, targets, strict=True):
        samples = [(arrays.from_numpy(x), arrays.from_numpy(y)) for x, y in zip(mine, classes[:, None], strict=True)]
        agents.append(Agent(LogisticRegressionCost(samples), state_snapshot_period=rarely))
    network = P2PNetwork(nx.cycle_graph(len(agents)), agents)  # whose weights are Metropolis's, 1/3
    methods = {"dsgd": ATC, "extra": EXTRA, "exact-diffusion": ED}
    method = methods[what.method](step_size=what.learning_rate)

    def run(rounds: int) -> np.ndarray:
        method.run(network, iterations=rounds)
        return np.stack([arrays.to_numpy(agent.x) for agent in network.agents()])

    return run


if __name__ == "__main__":
    job.main(build, "decent-bench", "decent-array", "numpy")
