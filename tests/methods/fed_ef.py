"""Fed-EF with momentum of the server: Li and Li, 2023. A client that is absent, or
has a message that is lost, keeps its memory.
"""

import optax

from algorithms import fed_ef, qsparse_local_sgd
from dsgd import Algorithm
from tests.methods.bits import Bits, period_end, tenth, with_reply
from tests.methods.compressors import HALF, HALF_OF_ALL, WHOLE_HALVES
from tests.methods.diloco import nesterov
from tests.methods.fed_avg import H
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.sparse_loco import SYMBOLS, remember

ETA, BETA = 0.8, 0.4


def recursion(given: Given) -> Rounds:
    def send(t):
        return given.to_server(t, WHOLE_HALVES.bits(given), given.model)

    return remember(given, nesterov(ETA, BETA), WHOLE_HALVES, send, fresh=True)


def method(given: Setting) -> Algorithm:
    outer = optax.sgd(ETA, momentum=BETA, nesterov=True)
    return fed_ef(given.optimizer, H, HALF_OF_ALL, outer)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, with_reply(tenth(d), d))


CASES = {
    "": Case(method, recursion, optimizer="momentum", symbols=SYMBOLS),
    "absent": Case(method, recursion, optimizer="momentum", absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "Qsparse-local-SGD": (lambda: fed_ef(SGD, 4, HALF), lambda: qsparse_local_sgd(SGD, 4, HALF)),
}
