"""Operations that XLA compiles to slow or memory-intensive code on CPUs, with replacements.

This is the only package that contains knowledge about XLA on CPUs. Each operation has two forms:
plain JAX, and a form for CPUs. The form for CPUs is used if a program is lowered for CPUs and the
arrays are large enough to benefit; on other platforms the plain form is used. Both compute the same
up to the order of sums. The docstring of each file says what XLA does, what the form gains, and for
which versions that was measured. To measure again, on CPUs:

    python -m experiments.benchmark workarounds

| operation | what it computes |
|---|---|
| `sum_rows`, `moments` | sums over the rows of an array; sums of the differences of rows from the
first row, and of their squares |
| `sum_elements`, `inner`, `sqnorm`, `sqnorms` | sums over the elements of vectors |
| `rescale` | (on all platforms) arrays with sums of squares that do not overflow |
| `largest`, `among_largest`, `ranks` | indices of the k largest elements of a vector; a mask of
these elements; the order of magnitudes |
| `materialize` | the same arrays, stored before they are used |
| `apply_in_place` | a step of large models in the memory of the gradients |
| `convolve` | convolutions of images |

If the environment variable `DSGD_XLA_WORKAROUNDS` is "off", the plain forms are used on CPUs, too.
It is read once, when `dsgd` is imported. Importing `dsgd` does not change JAX's behaviour.
"""

from dsgd.xla.barriers import materialize
from dsgd.xla.convolutions import convolve
from dsgd.xla.selection import among_largest, largest, ranks
from dsgd.xla.steps import apply_in_place
from dsgd.xla.sums import inner, moments, rescale, sqnorm, sqnorms, sum_elements, sum_rows

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""The value of XLA_FLAGS that makes a process compute matrix products on one CPU thread."""

__all__ = [
    "ONE_THREAD",
    "among_largest",
    "apply_in_place",
    "convolve",
    "inner",
    "largest",
    "materialize",
    "moments",
    "ranks",
    "rescale",
    "sqnorm",
    "sqnorms",
    "sum_elements",
    "sum_rows",
]
