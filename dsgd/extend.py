"""What methods and compressors are written with, in addition to `dsgd` and its modules: types of
arguments and states, and functions of rows, vectors, keys and indices.
"""

from dsgd.base import Ask, Gradients, Init, Key, Params, Period, PyTree, Real, Update
from dsgd.compressors.low_rank import orthonormal, warm_start
from dsgd.compressors.scales import clip_to_rms, round_randomly, safe_divide
from dsgd.compressors.sizes import wide
from dsgd.compressors.sparsification import require_share, scatter, selected_count
from dsgd.engine.indices import first_outside
from dsgd.engine.leaves import leaf_flags, require_flags
from dsgd.engine.literals import lift
from dsgd.engine.queries import loss_type
from dsgd.engine.randomness import StateKey, is_state_key
from dsgd.engine.units import scale_rows

__all__ = [
    "Ask",
    "Gradients",
    "Init",
    "Key",
    "Params",
    "Period",
    "PyTree",
    "Real",
    "StateKey",
    "Update",
    "clip_to_rms",
    "first_outside",
    "is_state_key",
    "leaf_flags",
    "lift",
    "loss_type",
    "orthonormal",
    "require_flags",
    "require_share",
    "round_randomly",
    "safe_divide",
    "scale_rows",
    "scatter",
    "selected_count",
    "warm_start",
    "wide",
]
