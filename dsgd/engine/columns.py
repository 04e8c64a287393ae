"""Names of the series that the engine itself records."""

BITS, CLOCK, TRAIN_LOSS, EVALUATED, SAMPLES, PRESENT, ARRIVED, GAP, DISTANCE = (
    "bits",
    "clock",
    "train_loss",
    "evaluated",
    "samples",
    "present",
    "arrived",
    "gap",
    "distance",
)
TOTALS = "totals of rounds"
"""Counts `[4, 4]` in the records, from which the history computes `OF_TOTALS` and the bits."""
OF_TOTALS = ("bits_up", "bits_down", "communications", "gradients")
COUNTED = (TOTALS, ARRIVED)
"""Counts, which are summed over all rounds of a record."""
EPOCHS = "epochs"
OF_ROUNDS = frozenset(
    {
        *(BITS, CLOCK, TRAIN_LOSS, EVALUATED, SAMPLES, PRESENT, ARRIVED, GAP, DISTANCE),
        *OF_TOTALS,
        EPOCHS,
    }
)
"""Names that a method cannot log."""
RESERVED = OF_ROUNDS | {
    "step",
    "grad_sqnorm",
    "objective",
    "prox_grad_sqnorm",
    "consensus",
}
"""Names that a problem's evaluation cannot return."""
