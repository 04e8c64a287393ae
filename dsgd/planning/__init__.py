"""Plans: which method, with which settings, is the fastest on a cluster."""

from dsgd import signatures, spelling
from dsgd.planning.candidates import Candidate
from dsgd.planning.changes import Change
from dsgd.planning.curves import Curve
from dsgd.planning.estimates import Estimate
from dsgd.planning.finals import Planned
from dsgd.planning.forecasts import Forecast, Memory, forecast
from dsgd.planning.goals import Goal
from dsgd.planning.halving import Eliminated
from dsgd.planning.networks import Networks
from dsgd.planning.pilots import Pilot, PilotRounds, PilotRow
from dsgd.planning.planner import Plan, plan
from dsgd.planning.restarts import Restarts
from dsgd.planning.updates import copy_seconds, update_seconds

__all__ = [
    "Candidate",
    "Change",
    "Curve",
    "Eliminated",
    "Estimate",
    "Forecast",
    "Goal",
    "Memory",
    "Networks",
    "Pilot",
    "PilotRounds",
    "PilotRow",
    "Plan",
    "Planned",
    "Restarts",
    "copy_seconds",
    "forecast",
    "plan",
    "update_seconds",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
