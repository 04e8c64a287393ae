"""Exact worst cases of methods over classes of functions, from the methods' own code."""

from theory_checks.worst_cases.analysis import WorstCase, worst_case
from theory_checks.worst_cases.classes import Smooth
from theory_checks.worst_cases.tuning import BestStep, best_step

__all__ = ["BestStep", "Smooth", "WorstCase", "best_step", "worst_case"]
