"""FedPAQ: Reisizadeh et al., 2020."""

from algorithms import fed_avg, fed_paq
from dsgd import Algorithm, compressors
from tests.methods.bits import Bits, codes, period_end, with_reply
from tests.methods.compressors import SHORT, SHORTS, declare_unbiased
from tests.methods.fed_avg import H, averaging, local_steps
from tests.methods.given import SGD, Case, Given, Rounds, Setting


def recursion(given: Given) -> Rounds:
    return local_steps(given, averaging, short_up, message=SHORTS)


def short_up(given: Given, t: int) -> dict:
    """Returns the bits of a compressed change up and a model down."""
    return given.to_server(t, SHORTS.bits(given), given.model)


def method(given: Setting) -> Algorithm:
    return fed_paq(given.optimizer, H, declare_unbiased(SHORT))


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, with_reply(codes(4, d), d))


SYMBOLS = {"server": "server.params"}
CASES = {
    "": Case(method, recursion, optimizer="momentum", symbols=SYMBOLS),
    "absent": Case(method, recursion, optimizer="momentum", absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "uncompressed": (lambda: fed_paq(SGD, 4, compressors.identity), lambda: fed_avg(SGD, 4)),
}
