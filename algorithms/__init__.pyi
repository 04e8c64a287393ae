"""Where the public names are, for `lazy_loader` and for type checkers."""

from . import dropcompute, kimad
from .asynchronous import on_ray
from .asynchronous.amelie_sgd import amelie_sgd
from .asynchronous.as_grad import as_grad
from .asynchronous.asynchronous_diloco import asynchronous_diloco
from .asynchronous.asynchronous_gossip_sgd import asynchronous_gossip_sgd
from .asynchronous.asynchronous_server import asynchronous_server
from .asynchronous.asynchronous_sgd import asynchronous_sgd
from .asynchronous.dc_asgd import dc_asgd
from .asynchronous.delay_adaptive_sgd import delay_adaptive_sgd
from .asynchronous.fed_async import fed_async
from .asynchronous.fed_buff import fed_buff
from .asynchronous.fragile_sgd import fragile_sgd
from .asynchronous.malenia_sgd import malenia_sgd
from .asynchronous.mind_flayer_sgd import mind_flayer_sgd, vecna_sgd
from .asynchronous.pair_averaging_sgd import pair_averaging_sgd
from .asynchronous.picky_sgd import picky_sgd
from .asynchronous.r_fast import r_fast
from .asynchronous.random_walk_sgd import random_walk_sgd
from .asynchronous.rennala_sgd import rennala_sgd
from .asynchronous.ringleader_sgd import ringleader_sgd
from .asynchronous.ringmaster_sgd import ringmaster_sgd
from .asynchronous.swarm_sgd import swarm_sgd
from .candidates import CANDIDATES, FOR_MODELS, SYNCHRONOUS
from .compressed.compressed_sgd import compressed_sgd
from .compressed.demo import demo
from .compressed.dgc import dgc
from .compressed.diana import diana, ef_bv
from .compressed.dion import dion, dion_with_adamw
from .compressed.dist_ef_sgd import dist_ef_sgd
from .compressed.econtrol import econtrol
from .compressed.ef21 import ef21
from .compressed.ef21_sgdm import ef21_sgdm
from .compressed.error_compensated_sgd import error_compensated_sgd
from .compressed.error_feedback import error_feedback
from .compressed.majority_vote import distributed_lion, majority_vote
from .compressed.marina import marina, vr_marina
from .compressed.one_bit_adam import one_bit_adam, zero_one_adam
from .compressed.powersgd import powersgd, powersgd_momentum
from .compressed.shadowheart_sgd import shadowheart_sgd
from .compressed.sketched_sgd import fetch_sgd, sketched_sgd
from .compressed.tern_grad import tern_grad
from .compressed.three_point import clag, lag, three_point
from .decentralized.beer import beer, c_gt, motef
from .decentralized.choco_sgd import choco_sgd
from .decentralized.d2 import d2
from .decentralized.dcd_sgd import dcd_sgd, ecd_sgd
from .decentralized.decentlam import decentlam
from .decentralized.decentralized_sgd import decentralized_sgd, dgd
from .decentralized.deepsqueeze import deepsqueeze
from .decentralized.dlm import dlm
from .decentralized.exact_diffusion import exact_diffusion
from .decentralized.extra import extra, pg_extra
from .decentralized.gradient_tracking import (
    atc_tracking,
    aug_dgm,
    gradient_tracking,
    momentum_tracking,
)
from .decentralized.k_gt import k_gt
from .decentralized.lead import lead
from .decentralized.local_exact_diffusion import local_exact_diffusion
from .decentralized.lt_admm import lt_admm, lt_admm_vr
from .decentralized.nids import nids
from .decentralized.opapc import opapc
from .decentralized.overlap_sgp import overlap_sgp
from .decentralized.prox_skip import prox_skip
from .decentralized.proximal_tracking import proximal_tracking
from .decentralized.push_diging import push_diging
from .decentralized.push_pull import ab, push_pull
from .decentralized.quasi_global_momentum import quasi_global_momentum
from .decentralized.relay_sgd import relay_sgd
from .decentralized.stochastic_gradient_push import stochastic_gradient_push
from .decentralized.variance_reduced_tracking import gt_hsgd, gt_saga, gt_sarah, gt_svrg, gt_vr
from .dropcompute.method import drop_compute
from .kimad.method import kimad_sgd
from .local_updates.adacomm import adacomm
from .local_updates.cser import cser
from .local_updates.delayed_diloco import delayed_diloco, eager_diloco
from .local_updates.des_loc import des_loc
from .local_updates.diloco import diloco, slowmo
from .local_updates.easgd import eamsgd, easgd
from .local_updates.fed_avg import fed_avg, fed_prox
from .local_updates.fed_dyn import fed_dyn
from .local_updates.fed_nova import fed_nova
from .local_updates.fed_opt import fed_adagrad, fed_adam, fed_avgm, fed_opt, fed_yogi
from .local_updates.fed_paq import fed_comgate, fed_ef, fed_paq
from .local_updates.hierarchical_local_sgd import hierarchical_local_sgd
from .local_updates.local_heads import fed_per, fed_rep
from .local_updates.local_sgd import local_sgd
from .local_updates.mime import mime, mime_lite
from .local_updates.noloco import noloco
from .local_updates.personal_models import apfl, ditto
from .local_updates.post_local_sgd import post_local_sgd
from .local_updates.q_fed_avg import q_fed_avg
from .local_updates.scaffnew import scaffnew
from .local_updates.scaffold import scaffold
from .local_updates.sparse_loco import muloco, qsparse_local_sgd, sparse_loco
from .local_updates.sparta import sparta
from .local_updates.streaming_diloco import streaming_diloco
from .mechanisms import delays, memories, three_points
from .mechanisms.variance_reduction import with_loopless_svrg, with_page, with_saga
from .power_of_choice import power_of_choice
from .registry import ALGORITHMS, make
from .synchronous.backup_workers_sgd import backup_workers_sgd
from .synchronous.gradient_descent import gradient_descent
from .synchronous.minibatch_sgd import minibatch_sgd, model_averaging_sgd, parameter_server_sgd
from .synchronous.proximal_gradient import proximal_gradient, proximal_sgd
from .synchronous.sgd import sgd
from .synchronous.variance_reduced import loopless_svrg, page, saga
from .with_diagnostics import with_diagnostics
from .with_local_work import with_local_work
from .with_starts import with_starts

__all__ = [
    "ALGORITHMS",
    "CANDIDATES",
    "FOR_MODELS",
    "SYNCHRONOUS",
    "ab",
    "adacomm",
    "amelie_sgd",
    "apfl",
    "as_grad",
    "asynchronous_diloco",
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
    "dc_asgd",
    "dcd_sgd",
    "decentlam",
    "decentralized_sgd",
    "deepsqueeze",
    "delay_adaptive_sgd",
    "delayed_diloco",
    "delays",
    "demo",
    "des_loc",
    "dgc",
    "dgd",
    "diana",
    "diloco",
    "dion",
    "dion_with_adamw",
    "dist_ef_sgd",
    "distributed_lion",
    "ditto",
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
    "fed_async",
    "fed_avg",
    "fed_avgm",
    "fed_buff",
    "fed_comgate",
    "fed_dyn",
    "fed_ef",
    "fed_nova",
    "fed_opt",
    "fed_paq",
    "fed_per",
    "fed_prox",
    "fed_rep",
    "fed_yogi",
    "fetch_sgd",
    "fragile_sgd",
    "gradient_descent",
    "gradient_tracking",
    "gt_hsgd",
    "gt_saga",
    "gt_sarah",
    "gt_svrg",
    "gt_vr",
    "hierarchical_local_sgd",
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
    "malenia_sgd",
    "marina",
    "memories",
    "mime",
    "mime_lite",
    "mind_flayer_sgd",
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
    "overlap_sgp",
    "page",
    "pair_averaging_sgd",
    "parameter_server_sgd",
    "pg_extra",
    "picky_sgd",
    "post_local_sgd",
    "power_of_choice",
    "powersgd",
    "powersgd_momentum",
    "prox_skip",
    "proximal_gradient",
    "proximal_sgd",
    "proximal_tracking",
    "push_diging",
    "push_pull",
    "q_fed_avg",
    "qsparse_local_sgd",
    "quasi_global_momentum",
    "r_fast",
    "random_walk_sgd",
    "relay_sgd",
    "rennala_sgd",
    "ringleader_sgd",
    "ringmaster_sgd",
    "saga",
    "scaffnew",
    "scaffold",
    "sgd",
    "shadowheart_sgd",
    "sketched_sgd",
    "slowmo",
    "sparse_loco",
    "sparta",
    "stochastic_gradient_push",
    "streaming_diloco",
    "swarm_sgd",
    "tern_grad",
    "three_point",
    "three_points",
    "vecna_sgd",
    "vr_marina",
    "with_diagnostics",
    "with_local_work",
    "with_loopless_svrg",
    "with_page",
    "with_saga",
    "with_starts",
    "zero_one_adam",
]
