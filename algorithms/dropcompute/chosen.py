"""A threshold that is chosen while training."""

from __future__ import annotations

from typing import NamedTuple

from dsgd import checks


class Chosen(NamedTuple):
    """See `chosen_after`.

    Args:
        rounds: I, in which all is computed and measured.
    """

    rounds: int


@checks.arguments
def chosen_after(rounds: int) -> Chosen:
    r"""A threshold that is infinite for I rounds, and then $\tau^*$ of what was measured in them (`dropcompute.threshold`).

    Args:
        rounds: I.

    Raises:
        ValueError: fewer than 1.

    Source: Giladi et al., "DropCompute", section 4.4.
    """
    return Chosen(checks.positive_int("chosen_after: rounds", rounds))
