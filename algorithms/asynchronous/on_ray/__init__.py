"""Asynchronous methods in real processes, as actors of Ray, which is an optional dependency.

method = algorithms.asynchronous_sgd(optax.sgd(0.1), bound=16)
trained = algorithms.on_ray.run(method, problem, steps=1_000, key=key)
trained.history["loss"], trained.history["clock"]  # in real seconds
cluster = algorithms.on_ray.measured_cluster(trained)  # for simulations
"""

from algorithms.asynchronous.on_ray.gossip import asynchronous_gossip_sgd
from algorithms.asynchronous.on_ray.trained import Trained, measured_cluster
from algorithms.asynchronous.on_ray.with_servers import minibatch_sgd, run
from dsgd.machines.ray_session import session

__all__ = [
    "Trained",
    "asynchronous_gossip_sgd",
    "measured_cluster",
    "minibatch_sgd",
    "run",
    "session",
]
