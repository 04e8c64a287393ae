"""The candidates of `dsgd.plan` and of maps: methods of all families with the settings that matter
on a network.
"""

from __future__ import annotations

from functools import partial

import topologies
from algorithms.asynchronous.asynchronous_gossip_sgd import asynchronous_gossip_sgd
from algorithms.asynchronous.asynchronous_sgd import asynchronous_sgd
from algorithms.compressed.compressed_sgd import compressed_sgd
from algorithms.compressed.ef21 import ef21
from algorithms.compressed.error_compensated_sgd import error_compensated_sgd
from algorithms.decentralized.choco_sgd import choco_sgd
from algorithms.decentralized.decentralized_sgd import decentralized_sgd
from algorithms.decentralized.exact_diffusion import exact_diffusion
from algorithms.decentralized.lead import lead
from algorithms.decentralized.local_exact_diffusion import local_exact_diffusion
from algorithms.local_updates.diloco import diloco
from algorithms.local_updates.local_sgd import local_sgd
from algorithms.local_updates.scaffold import scaffold
from algorithms.local_updates.sparse_loco import qsparse_local_sgd
from algorithms.synchronous.minibatch_sgd import minibatch_sgd
from dsgd import Candidate, compressors
from dsgd.compressors import whole_model

_PERIODS = {"H": (4, 16, 64)}
_SIGN, _CODES = whole_model(compressors.sign), whole_model(compressors.random_quantization(4))
_TENTH, _SHARE, _HUNDREDTH = (whole_model(compressors.top_k(k)) for k in (0.1, 0.03, 0.01))
_LAZY_RING = partial(topologies.ring, weights=topologies.lazy)

SYNCHRONOUS = (
    Candidate("mini-batch SGD", minibatch_sgd),
    Candidate("local SGD", local_sgd, ("H",), _PERIODS),
    Candidate("DiLoCo", diloco, ("H",), _PERIODS),
    Candidate("SCAFFOLD", scaffold, ("H",), _PERIODS),
    Candidate("compressed SGD", compressed_sgd, (_CODES,)),
    Candidate("EC-SGD", error_compensated_sgd, (_SIGN, _SIGN)),
    Candidate("EC-SGD", error_compensated_sgd, (_TENTH, _TENTH)),
    Candidate("EC-SGD", error_compensated_sgd, (_SHARE, _SHARE)),
    Candidate("EF21", ef21, (_TENTH, _TENTH)),
    Candidate("Qsparse-local-SGD", qsparse_local_sgd, ("H", _SIGN), _PERIODS),
    Candidate("Qsparse-local-SGD", qsparse_local_sgd, ("H", _HUNDREDTH), _PERIODS),
    Candidate("decentralized SGD", decentralized_sgd, (topologies.ring,)),
    Candidate("decentralized SGD", decentralized_sgd, (topologies.one_peer_exponential,)),
    Candidate("exact diffusion", exact_diffusion, (_LAZY_RING,)),
    Candidate("LED", local_exact_diffusion, (_LAZY_RING, "H"), _PERIODS),
    Candidate("CHOCO-SGD", choco_sgd, (topologies.ring, _SIGN, 0.5)),
    Candidate("LEAD", lead, (topologies.ring, whole_model(compressors.qsgd(2, "linf")))),
)
"""The baseline, mini-batch SGD, first. The iterates of these methods do not depend on the clock."""

ASYNCHRONOUS = (
    Candidate("asynchronous SGD", asynchronous_sgd, updates=True),
    Candidate("AD-PSGD", asynchronous_gossip_sgd, (topologies.complete,), updates=True),
)
"""Methods with iterates that depend on the cluster."""

CANDIDATES = (*SYNCHRONOUS, *ASYNCHRONOUS)
"""All of them: what `python -m experiments.plan` compares by default."""
