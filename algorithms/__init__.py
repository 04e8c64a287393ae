"""Distributed first-order methods: one file for each method or small family."""

from __future__ import annotations

from collections.abc import Callable

import optax

import topologies
from algorithms import dropcompute, kimad, optimizers
from algorithms.asynchronous import delays, on_ray
from algorithms.asynchronous.asynchronous_gossip_sgd import asynchronous_gossip_sgd
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.asynchronous.asynchronous_sgd import asynchronous_sgd
from algorithms.candidates import CANDIDATES, SYNCHRONOUS
from algorithms.compressed import memories, three_points
from algorithms.compressed.compressed_sgd import compressed_sgd
from algorithms.compressed.demo import demo
from algorithms.compressed.dgc import dgc
from algorithms.compressed.diana import diana, ef_bv
from algorithms.compressed.dion import dion
from algorithms.compressed.dist_ef_sgd import dist_ef_sgd
from algorithms.compressed.econtrol import econtrol
from algorithms.compressed.ef21 import ef21
from algorithms.compressed.ef21_sgdm import ef21_sgdm
from algorithms.compressed.error_compensated_sgd import error_compensated_sgd
from algorithms.compressed.majority_vote import distributed_lion, majority_vote
from algorithms.compressed.marina import marina, vr_marina
from algorithms.compressed.memories import error_feedback
from algorithms.compressed.one_bit_adam import one_bit_adam, zero_one_adam
from algorithms.compressed.powersgd import powersgd, powersgd_momentum
from algorithms.compressed.sketched_sgd import fetch_sgd, sketched_sgd
from algorithms.compressed.tern_grad import tern_grad
from algorithms.compressed.three_point import clag, lag, three_point
from algorithms.decentralized.beer import beer, c_gt, motef
from algorithms.decentralized.choco_sgd import choco_sgd
from algorithms.decentralized.d2 import d2
from algorithms.decentralized.dcd_sgd import dcd_sgd, ecd_sgd
from algorithms.decentralized.decentlam import decentlam
from algorithms.decentralized.decentralized_sgd import decentralized_sgd, dgd
from algorithms.decentralized.deepsqueeze import deepsqueeze
from algorithms.decentralized.dlm import dlm
from algorithms.decentralized.exact_diffusion import exact_diffusion
from algorithms.decentralized.extra import extra
from algorithms.decentralized.gradient_tracking import (
    atc_tracking,
    aug_dgm,
    gradient_tracking,
    momentum_tracking,
)
from algorithms.decentralized.k_gt import k_gt
from algorithms.decentralized.lead import lead
from algorithms.decentralized.local_exact_diffusion import local_exact_diffusion
from algorithms.decentralized.lt_admm import lt_admm, lt_admm_vr
from algorithms.decentralized.nids import nids
from algorithms.decentralized.opapc import opapc
from algorithms.decentralized.pg_extra import pg_extra
from algorithms.decentralized.prox_skip import prox_skip
from algorithms.decentralized.proximal_tracking import proximal_tracking
from algorithms.decentralized.push_diging import push_diging
from algorithms.decentralized.push_pull import ab, push_pull
from algorithms.decentralized.quasi_global_momentum import quasi_global_momentum
from algorithms.decentralized.relay_sgd import relay_sgd
from algorithms.decentralized.stochastic_gradient_push import stochastic_gradient_push
from algorithms.decentralized.variance_reduction import gt_hsgd, gt_saga, gt_sarah, gt_svrg, gt_vr
from algorithms.dropcompute.method import drop_compute
from algorithms.kimad.method import kimad_sgd
from algorithms.local_updates.adacomm import adacomm
from algorithms.local_updates.cser import cser
from algorithms.local_updates.delayed_diloco import delayed_diloco, eager_diloco
from algorithms.local_updates.des_loc import des_loc
from algorithms.local_updates.diloco import diloco, slowmo
from algorithms.local_updates.easgd import eamsgd, easgd
from algorithms.local_updates.fed_avg import fed_avg, fed_prox
from algorithms.local_updates.fed_dyn import fed_dyn
from algorithms.local_updates.fed_nova import fed_nova
from algorithms.local_updates.fed_opt import fed_adagrad, fed_adam, fed_avgm, fed_opt, fed_yogi
from algorithms.local_updates.fed_paq import fed_comgate, fed_ef, fed_paq
from algorithms.local_updates.local_sgd import local_sgd
from algorithms.local_updates.mime import mime, mime_lite
from algorithms.local_updates.noloco import noloco
from algorithms.local_updates.post_local_sgd import post_local_sgd
from algorithms.local_updates.scaffnew import scaffnew
from algorithms.local_updates.scaffold import scaffold
from algorithms.local_updates.sparse_loco import muloco, qsparse_local_sgd, sparse_loco
from algorithms.local_updates.sparta import sparta
from algorithms.local_updates.streaming_diloco import streaming_diloco
from algorithms.synchronous.backup_workers_sgd import backup_workers_sgd
from algorithms.synchronous.gradient_descent import gradient_descent
from algorithms.synchronous.minibatch_sgd import (
    minibatch_sgd,
    model_averaging_sgd,
    parameter_server_sgd,
)
from algorithms.synchronous.proximal_gradient import proximal_gradient, proximal_sgd
from algorithms.synchronous.sgd import sgd
from algorithms.synchronous.variance_reduced import loopless_svrg, page, saga
from algorithms.variance_reduction import with_loopless_svrg, with_page, with_saga
from algorithms.with_diagnostics import with_diagnostics
from algorithms.with_local_work import with_local_work
from algorithms.with_starts import with_starts
from dsgd import checks
from dsgd.base import Algorithm
from dsgd.compressors import (
    buckets,
    chunked_top_k,
    qsgd,
    random_block,
    random_k,
    random_quantization,
    sign,
    top_k,
    two_bit,
    whole_model,
)

ALGORITHMS: dict[str, Callable[[optax.GradientTransformation, int], Algorithm]] = {
    "gd": lambda optimizer, workers: gradient_descent(optimizer),
    "sgd": lambda optimizer, workers: sgd(optimizer),
    "mb-sgd": lambda optimizer, workers: minibatch_sgd(optimizer),
    "mb-sgd-model": lambda optimizer, workers: model_averaging_sgd(optimizer),
    "prox-gd": lambda optimizer, workers: proximal_gradient(optimizers.step_size(optimizer)),
    "prox-sgd": lambda optimizer, workers: proximal_sgd(optimizers.step_size(optimizer)),
    "mb-sgd-server": lambda optimizer, workers: parameter_server_sgd(optimizer),
    "page": lambda optimizer, workers: page(optimizer, 0.25),
    "l-svrg": lambda optimizer, workers: loopless_svrg(optimizer, 0.25),
    "csgd": lambda optimizer, workers: compressed_sgd(
        optimizer, whole_model(random_quantization(4))
    ),
    "csgd-ring": lambda optimizer, workers: compressed_sgd(
        optimizer, whole_model(random_quantization(4)), via="ring"
    ),
    "ec-sgd": lambda optimizer, workers: error_compensated_sgd(
        optimizer, whole_model(sign), whole_model(sign)
    ),
    "ef21": lambda optimizer, workers: ef21(
        optimizer, whole_model(top_k(0.1)), whole_model(top_k(0.1))
    ),
    "diana": lambda optimizer, workers: diana(optimizer, whole_model(random_quantization(4))),
    "ef-bv": lambda optimizer, workers: ef_bv(optimizer, whole_model(random_quantization(4))),
    "ef21-sgdm": lambda optimizer, workers: ef21_sgdm(optimizer, whole_model(top_k(0.1))),
    "econtrol": lambda optimizer, workers: econtrol(optimizer, whole_model(top_k(0.1)), 0.1),
    "dist-ef-sgd": lambda optimizer, workers: dist_ef_sgd(optimizer, whole_model(sign)),
    "marina": lambda optimizer, workers: marina(optimizer, whole_model(random_k(0.25)), 0.25),
    "vr-marina": lambda optimizer, workers: vr_marina(optimizer, whole_model(random_k(0.25)), 0.25),
    "3pc": lambda optimizer, workers: three_point(
        optimizer, three_points.v2(whole_model(top_k(0.1)), whole_model(random_k(0.25)))
    ),
    "lag": lambda optimizer, workers: lag(optimizer, 4.0),
    "clag": lambda optimizer, workers: clag(optimizer, whole_model(top_k(0.1)), 0.9),
    "asgd": lambda optimizer, workers: asynchronous_sgd(optimizer),
    "dsgd": lambda optimizer, workers: decentralized_sgd(optimizer, topologies.ring(workers)),
    "dsgd-complete": lambda optimizer, workers: decentralized_sgd(
        optimizer, topologies.complete(workers)
    ),
    "dgd": lambda optimizer, workers: dgd(optimizer, topologies.ring(workers)),
    "local-sgd": lambda optimizer, workers: local_sgd(optimizer, 4),
    "scaffold": lambda optimizer, workers: scaffold(optimizer, 4),
    "diloco": lambda optimizer, workers: diloco(optimizer, 4),
    "slowmo": lambda optimizer, workers: slowmo(optimizer, 4),
    "adacomm": lambda optimizer, workers: adacomm(optimizer, 4, 4, minimum=-10.0),
    "post-local-sgd": lambda optimizer, workers: post_local_sgd(optimizer, 4, 4),
    "des-loc": lambda optimizer, workers: des_loc(optimizer, 2),
    "easgd": lambda optimizer, workers: easgd(optimizer, 2),
    "eamsgd": lambda optimizer, workers: eamsgd(optimizer, 0.9, 2),
    "fed-avg": lambda optimizer, workers: fed_avg(optimizer, 4),
    "fed-prox": lambda optimizer, workers: fed_prox(optimizer, 4, 0.1),
    "fed-avgm": lambda optimizer, workers: fed_avgm(optimizer, 4),
    "fed-adagrad": lambda optimizer, workers: fed_adagrad(optimizer, 4, 0.1),
    "fed-yogi": lambda optimizer, workers: fed_yogi(optimizer, 4, 0.1),
    "fed-adam": lambda optimizer, workers: fed_adam(optimizer, 4, 0.1),
    "fed-nova": lambda optimizer, workers: fed_nova(optimizer, 4),
    "fed-dyn": lambda optimizer, workers: fed_dyn(optimizer, 4, 1.0),
    "fed-paq": lambda optimizer, workers: fed_paq(
        optimizer, 4, whole_model(random_quantization(4))
    ),
    "fed-comgate": lambda optimizer, workers: fed_comgate(
        optimizers.step_size(optimizer), 4, whole_model(random_quantization(4))
    ),
    "fed-ef": lambda optimizer, workers: fed_ef(optimizer, 4, whole_model(top_k(0.1))),
    "mime-lite": lambda optimizer, workers: mime_lite(optimizer, 4),
    "mime": lambda optimizer, workers: mime(optimizer, 4),
    "scaffnew": lambda optimizer, workers: scaffnew(optimizer, 0.5),
    "streaming-diloco": lambda optimizer, workers: streaming_diloco(optimizer, 1, 4),
    "sparse-loco": lambda optimizer, workers: sparse_loco(
        optimizer, 4, chunked_top_k(4, 8, two_bit)
    ),
    "muloco": lambda optimizer, workers: muloco(optimizer, 4),
    "qsparse-local-sgd": lambda optimizer, workers: qsparse_local_sgd(
        optimizer, 4, whole_model(top_k(0.1))
    ),
    "cser": lambda optimizer, workers: cser(
        optimizer, 4, random_block(0.4, unbiased=False), random_block(0.1, unbiased=False)
    ),
    "delayed-diloco": lambda optimizer, workers: delayed_diloco(optimizer, 4),
    "eager-diloco": lambda optimizer, workers: eager_diloco(optimizer, 4),
    "noloco": lambda optimizer, workers: noloco(
        optimizer, topologies.random_matchings(workers, 3), 4
    ),
    "sparta": lambda optimizer, workers: sparta(optimizer, 0.2),
    "d2": lambda optimizer, workers: d2(optimizer, topologies.ring(workers, topologies.lazy)),
    "extra": lambda optimizer, workers: extra(optimizer, topologies.ring(workers)),
    "exact-diffusion": lambda optimizer, workers: exact_diffusion(
        optimizer, topologies.ring(workers)
    ),
    "gradient-tracking": lambda optimizer, workers: gradient_tracking(
        optimizer, topologies.ring(workers)
    ),
    "nids": lambda optimizer, workers: nids(
        optimizers.step_size(optimizer), topologies.ring(workers)
    ),
    "pg-extra": lambda optimizer, workers: pg_extra(
        optimizers.step_size(optimizer), topologies.ring(workers)
    ),
    "prox-tracking": lambda optimizer, workers: proximal_tracking(
        optimizers.step_size(optimizer), topologies.ring(workers)
    ),
    "atc-tracking": lambda optimizer, workers: atc_tracking(optimizer, topologies.ring(workers)),
    "k-gt": lambda optimizer, workers: k_gt(optimizer, topologies.ring(workers), 4),
    "led": lambda optimizer, workers: local_exact_diffusion(
        optimizer, topologies.ring(workers, topologies.lazy), 4
    ),
    "prox-skip": lambda optimizer, workers: prox_skip(optimizer, topologies.ring(workers), 0.5),
    "aug-dgm": lambda optimizer, workers: aug_dgm(optimizer, topologies.ring(workers)),
    "momentum-tracking": lambda optimizer, workers: momentum_tracking(
        optimizer, topologies.ring(workers)
    ),
    "qg-dsgdm": lambda optimizer, workers: quasi_global_momentum(
        optimizer, topologies.ring(workers)
    ),
    "decentlam": lambda optimizer, workers: decentlam(optimizer, topologies.ring(workers)),
    "gt-svrg": lambda optimizer, workers: gt_svrg(optimizer, topologies.ring(workers), 4),
    "gt-vr": lambda optimizer, workers: gt_vr(optimizer, topologies.ring(workers), 0.25),
    "gt-sarah": lambda optimizer, workers: gt_sarah(optimizer, topologies.ring(workers), 4),
    "gt-hsgd": lambda optimizer, workers: gt_hsgd(optimizer, topologies.ring(workers), 0.1),
    "sgp": lambda optimizer, workers: stochastic_gradient_push(
        optimizer, topologies.one_peer_exponential(workers)
    ),
    "push-diging": lambda optimizer, workers: push_diging(
        optimizer, topologies.one_peer_exponential(workers)
    ),
    "push-pull": lambda optimizer, workers: push_pull(
        optimizer, *[topologies.exponential(workers)] * 2
    ),
    "ab": lambda optimizer, workers: ab(optimizer, *[topologies.exponential(workers)] * 2),
    "choco-sgd": lambda optimizer, workers: choco_sgd(
        optimizer, topologies.ring(workers), whole_model(sign), 0.5
    ),
    "deepsqueeze": lambda optimizer, workers: deepsqueeze(
        optimizer, topologies.ring(workers), whole_model(sign), 0.3
    ),
    "dlm": lambda optimizer, workers: dlm(optimizer, topologies.ring(workers)),
    "lt-admm": lambda optimizer, workers: lt_admm(optimizer, topologies.ring(workers), 4),
    "lt-admm-vr": lambda optimizer, workers: lt_admm_vr(optimizer, topologies.ring(workers), 4),
    "relay-sgd": lambda optimizer, workers: relay_sgd(optimizer, topologies.chain(workers)),
    "opapc": lambda optimizer, workers: opapc(topologies.ring(workers), 1.0, 0.1),
    "dcd-sgd": lambda optimizer, workers: dcd_sgd(
        optimizer, topologies.ring(workers), whole_model(random_quantization(8))
    ),
    "ecd-sgd": lambda optimizer, workers: ecd_sgd(
        optimizer, topologies.ring(workers), whole_model(random_quantization(8))
    ),
    "lead": lambda optimizer, workers: lead(
        optimizer, topologies.ring(workers), whole_model(buckets(qsgd(2, "linf"), 512))
    ),
    "beer": lambda optimizer, workers: beer(
        optimizer, topologies.ring(workers), whole_model(top_k(0.1)), 0.1
    ),
    "c-gt": lambda optimizer, workers: c_gt(
        optimizer, topologies.ring(workers), whole_model(qsgd(2, "linf")), 0.2, 0.2
    ),
    "motef": lambda optimizer, workers: motef(
        optimizer, topologies.ring(workers), whole_model(top_k(0.1)), 0.1, 0.2
    ),
    "ad-psgd": lambda optimizer, workers: asynchronous_gossip_sgd(
        optimizer, topologies.ring(workers)
    ),
    "powersgd": lambda optimizer, workers: powersgd(optimizer),
    "majority-vote": lambda optimizer, workers: majority_vote(optimizer),
    "distributed-lion": lambda optimizer, workers: distributed_lion(optimizer),
    "tern-grad": lambda optimizer, workers: tern_grad(optimizer),
    "one-bit-adam": lambda optimizer, workers: one_bit_adam(
        optimizer, 3, whole_model(sign), beta2=0.9, epsilon=0.1
    ),
    "zero-one-adam": lambda optimizer, workers: zero_one_adam(
        optimizers.step_size(optimizer), 4, whole_model(sign), stretch=1, longest=2, epsilon=0.1
    ),
    "demo": lambda optimizer, workers: demo(optimizer, k=4),
    "dgc": lambda optimizer, workers: dgc(optimizer, whole_model(top_k(0.1))),
    "dion": lambda optimizer, workers: dion(optimizer),
    "sketched-sgd": lambda optimizer, workers: sketched_sgd(optimizer, 0.1, 32),
    "fetch-sgd": lambda optimizer, workers: fetch_sgd(optimizer, 0.1, 32),
}
"""The survey's short names of the methods. Each value is a function (optax optimizer, N) ->
Algorithm that uses the survey's default options.

All contract tests run on every entry."""


@checks.arguments
def make(name: str, optimizer: optax.GradientTransformation, workers: int) -> Algorithm:
    """Returns the registered method with this name, with its default options.

    Args:
        name: a key of `ALGORITHMS`.
        optimizer: the local step.
        workers: N, number of workers.

    Raises:
        ValueError: if the name is not registered.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"make: unknown method {name!r}; expected one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name](optimizer, checks.positive_int("make: workers", workers))


__all__ = [
    "ALGORITHMS",
    "CANDIDATES",
    "SYNCHRONOUS",
    "ab",
    "adacomm",
    "asynchronous_gossip_sgd",
    "asynchronous_server",
    "asynchronous_sgd",
    "atc_tracking",
    "aug_dgm",
    "backup_workers_sgd",
    "beer",
    "c_gt",
    "choco_sgd",
    "clag",
    "compressed_sgd",
    "cser",
    "d2",
    "dcd_sgd",
    "decentlam",
    "decentralized_sgd",
    "deepsqueeze",
    "delayed_diloco",
    "delays",
    "demo",
    "des_loc",
    "dgc",
    "dgd",
    "diana",
    "diloco",
    "dion",
    "dist_ef_sgd",
    "distributed_lion",
    "dlm",
    "drop_compute",
    "dropcompute",
    "eager_diloco",
    "eamsgd",
    "easgd",
    "ecd_sgd",
    "econtrol",
    "ef21",
    "ef21_sgdm",
    "ef_bv",
    "error_compensated_sgd",
    "error_feedback",
    "exact_diffusion",
    "extra",
    "fed_adagrad",
    "fed_adam",
    "fed_avg",
    "fed_avgm",
    "fed_comgate",
    "fed_dyn",
    "fed_ef",
    "fed_nova",
    "fed_opt",
    "fed_paq",
    "fed_prox",
    "fed_yogi",
    "fetch_sgd",
    "gradient_descent",
    "gradient_tracking",
    "gt_hsgd",
    "gt_saga",
    "gt_sarah",
    "gt_svrg",
    "gt_vr",
    "k_gt",
    "kimad",
    "kimad_sgd",
    "lag",
    "lead",
    "local_exact_diffusion",
    "local_sgd",
    "loopless_svrg",
    "lt_admm",
    "lt_admm_vr",
    "majority_vote",
    "make",
    "marina",
    "memories",
    "mime",
    "mime_lite",
    "minibatch_sgd",
    "model_averaging_sgd",
    "momentum_tracking",
    "motef",
    "muloco",
    "nids",
    "noloco",
    "on_ray",
    "one_bit_adam",
    "opapc",
    "page",
    "parameter_server_sgd",
    "pg_extra",
    "post_local_sgd",
    "powersgd",
    "powersgd_momentum",
    "prox_skip",
    "proximal_gradient",
    "proximal_sgd",
    "proximal_tracking",
    "push_diging",
    "push_pull",
    "qsparse_local_sgd",
    "quasi_global_momentum",
    "relay_sgd",
    "saga",
    "scaffnew",
    "scaffold",
    "sgd",
    "sketched_sgd",
    "slowmo",
    "sparse_loco",
    "sparta",
    "stochastic_gradient_push",
    "streaming_diloco",
    "tern_grad",
    "three_point",
    "three_points",
    "vr_marina",
    "with_diagnostics",
    "with_local_work",
    "with_loopless_svrg",
    "with_page",
    "with_saga",
    "with_starts",
    "zero_one_adam",
]
