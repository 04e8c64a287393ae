"""XLA on CPUs: the operations that XLA compiles to slow code, or to code that needs much memory, on
CPUs.

Only this package knows about XLA on CPUs. Each operation has two forms: plain JAX, and a form for
CPUs. The form for CPUs is chosen when a program is lowered for CPUs and the arrays are large enough
to gain from it; on other platforms the plain form runs. Both compute the same up to the order of
sums. The first lines of each file say what XLA does, what the form gains, and on which versions
that was measured; to measure again, on CPUs:

    python -m experiments.benchmark workarounds

| operation | what it computes |
|---|---|
| `sum_rows`, `moments` | sums over the rows of an array; sums of what rows differ by from the first, and of its square |
| `sum_elements`, `inner`, `sqnorm` | sums over the elements of vectors |
| `largest`, `among_largest`, `ranks` | places of the k largest elements of a vector; which elements these are; the order of magnitudes |
| `materialize` | the same arrays, stored before they are used |
| `in_place` | a step of large models in the memory of the gradients |
| `convolve` | convolutions of images |
| `lower` | lowers a traced program; its random bits are those of JAX |

With the environment variable `DSGD_XLA_WORKAROUNDS=off` the plain forms run on CPUs, too. It is
read once, when `dsgd` is imported. Importing `dsgd` changes nothing in JAX. `lower` uses a private
argument of JAX if the installed version has it.
"""

from dsgd.xla.barriers import materialize
from dsgd.xla.convolutions import convolve
from dsgd.xla.selection import among_largest, largest, ranks
from dsgd.xla.steps import in_place
from dsgd.xla.sums import inner, moments, sqnorm, sum_elements, sum_rows
from dsgd.xla.threefry import lower

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""The value of XLA_FLAGS with which a process computes products on one thread of a CPU."""

__all__ = [
    "ONE_THREAD",
    "among_largest",
    "convolve",
    "in_place",
    "inner",
    "largest",
    "lower",
    "materialize",
    "moments",
    "ranks",
    "sqnorm",
    "sum_elements",
    "sum_rows",
]
