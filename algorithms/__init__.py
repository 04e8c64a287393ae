"""Distributed first-order methods: one file for each method or small family."""

from __future__ import annotations

from collections.abc import Callable

import optax

from algorithms import dropcompute, facts, kimad
from algorithms.asynchronous import on_ray
from algorithms.asynchronous.asynchronous_gossip_sgd import asynchronous_gossip_sgd
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.asynchronous.asynchronous_sgd import asynchronous_sgd
from algorithms.candidates import CANDIDATES, SYNCHRONOUS
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
from algorithms.compressed.error_feedback import error_feedback
from algorithms.compressed.majority_vote import distributed_lion, majority_vote
from algorithms.compressed.marina import marina, vr_marina
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
from algorithms.decentralized.extra import extra, pg_extra
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
from algorithms.decentralized.prox_skip import prox_skip
from algorithms.decentralized.proximal_tracking import proximal_tracking
from algorithms.decentralized.push_diging import push_diging
from algorithms.decentralized.push_pull import ab, push_pull
from algorithms.decentralized.quasi_global_momentum import quasi_global_momentum
from algorithms.decentralized.relay_sgd import relay_sgd
from algorithms.decentralized.stochastic_gradient_push import stochastic_gradient_push
from algorithms.decentralized.variance_reduced_tracking import (
    gt_hsgd,
    gt_saga,
    gt_sarah,
    gt_svrg,
    gt_vr,
)
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
from algorithms.mechanisms import delays, memories, three_points
from algorithms.mechanisms.variance_reduction import with_loopless_svrg, with_page, with_saga
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
from algorithms.with_diagnostics import with_diagnostics
from algorithms.with_local_work import with_local_work
from algorithms.with_starts import with_starts
from dsgd import checks
from dsgd.base import Algorithm

ALGORITHMS: dict[str, Callable[[optax.GradientTransformation, int], Algorithm]] = facts.instances()
"""The methods by the names of their functions, and variants. Each value is a function (optax
optimizer, N) -> Algorithm that uses the method's default arguments.

All contract tests run on every entry."""


@checks.arguments
def make(name: str, optimizer: optax.GradientTransformation, workers: int) -> Algorithm:
    """Returns the registered method with this name, with its default options.

    Args:
        name: a key of `ALGORITHMS`, also with hyphens, or an alias: `fed_avg`, `fed-avg`, `sgp`.
        optimizer: the local step.
        workers: N, number of workers.

    Raises:
        ValueError: if the name is not registered.
    """
    build = ALGORITHMS[facts.full_name(name)]
    return build(optimizer, checks.positive_int("make: workers", workers))


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
