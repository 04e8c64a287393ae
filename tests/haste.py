"""How tests compile what runs once: most of the time would go into machine code."""

import jax

# XLA's older way to write loops takes half the time; the versions of JAX 0.11 do not have it. It rounds what it computes twice in two
# ways: where sums with what was left out must come out even, take EVEN.
HASTY = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
EVEN = {"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else {}
