"""Names of the series that the engine itself records."""

BITS, CLOCK, TRAIN_LOSS, EVALUATED, SAMPLES, PRESENT, ARRIVED = (
    "bits",
    "clock",
    "train_loss",
    "evaluated",
    "samples",
    "present",
    "arrived",
)
COUNTED = (BITS, ARRIVED)
"""Counts, which are summed over all rounds of a record."""
OF_ROUNDS = frozenset({BITS, CLOCK, TRAIN_LOSS, EVALUATED, SAMPLES, PRESENT, ARRIVED})
"""Names that a method cannot log."""
RESERVED = OF_ROUNDS | {
    "step",
    "grad_sqnorm",
    "objective",
    "prox_grad_sqnorm",
    "consensus",
}
"""Names that a problem's evaluation cannot return."""
