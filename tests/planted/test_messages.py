"""Mistakes in messages: packed codes, counts of bits, collectives, gossip, the calls of a round."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

WIRE, WORKERS, CALLS = (
    "tests/dsgd/wire/test_",
    "tests/dsgd/workers/test_",
    "tests/dsgd/communication/test_communicator.py",
)

MISTAKES = [
    Mistake("dsgd/wire/codecs.py", "<< (k * width)", "<< k", f"{WIRE}codecs.py"),
    Mistake(
        "dsgd/wire/counts.py",
        "over = digit >> BASE_BITS",
        "over = count[..., i] >> BASE_BITS",
        f"{WIRE}counts.py",
    ),
    Mistake(
        "dsgd/wire/traffic.py",
        "int(trips[1]) + 1, condition",
        "int(trips[1]), condition",
        f"{WIRE}traffic.py -k called",
    ),
    Mistake(
        "dsgd/workers/axis.py",
        "x[block - offset :], hops + 1)",
        "x[block - offset :], hops)",
        f"{WORKERS}axis.py -k every_collective",
    ),
    Mistake(
        "dsgd/workers/axis.py",
        "jnp.swapaxes(received, 0, 1)",
        "received",
        f"{WORKERS}axis.py -k every_collective",
    ),
    Mistake(
        "dsgd/workers/mixing.py",
        "axis=1) + jnp.sum(comes, axis=1)",
        "axis=1)",
        f"{WORKERS}participation.py -k gossip",
    ),
    Mistake(
        "dsgd/workers/mixing.py",
        '(mode="promise_in_bounds") - flat)',
        '(mode="promise_in_bounds"))',
        f"{WORKERS}participation.py -k gossip",
    ),
    Mistake(
        "dsgd/workers/routes.py",
        "brought >= topology.n - n",
        "brought > topology.n",
        f"{WORKERS}routes.py",
    ),
    Mistake(
        "dsgd/communication/bits.py",
        "Bits(counts.scale(parts[:, 0], sent)",
        "Bits(sent",
        f"{CALLS} -k one_server",
    ),
    Mistake(
        "dsgd/communication/bits.py",
        "left_out = jnp.arange(N)[None, :] == (",
        "left_out = jnp.arange(N)[None, :] != (",
        f"{CALLS} -k any_length",
    ),
    Mistake(
        "dsgd/communication/bits.py",
        "(ids if but is None else but)",
        "ids",
        f"{CALLS} -k any_length",
    ),
    Mistake(
        "dsgd/communication/compressed.py",
        "but=(ids + 1) % N",
        "but=(ids - 1) % N",
        f"{CALLS} -k any_length",
    ),
    Mistake(
        "dsgd/communication/record.py",
        "size = sum(part.size",
        "size = max(part.size",
        f"{CALLS} -k rounded_once",
    ),
    Mistake(
        "dsgd/communication/compressed.py",
        "jnp.roll(leaf, 1, axis=0)",
        "jnp.roll(leaf, -1, axis=0)",
        f"{CALLS} -k around_ring",
    ),
    Mistake(
        "dsgd/communication/communicator.py",
        "kept = workers.where_delivered(",
        "kept = workers.where_present(",
        f"{CALLS} -k aggregate",
    ),
    Mistake(
        "dsgd/communication/communicator.py",
        "(self.step + 1 - offset) % period == 0",
        "(self.step + 1 - offset) % both == 0",
        f"{CALLS} -k 'every and third'",
    ),
    Mistake(
        "dsgd/communication/communicator.py",
        "jnp.asarray(weights, workers.widened(rows).dtype)",
        "jnp.ones_like(weights, workers.widened(rows).dtype)",
        '"tests/dsgd/problems/test_weights.py::test_a_worker_of_weight_2_counts_as_two_workers'
        '[DeMo]"',
    ),
    Mistake(
        "dsgd/communication/compressed.py",
        "own and own.fold_in(shard)",
        "own",
        "tests/dsgd/communication/test_common.py -k share_a_key",
    ),
    Mistake(
        "dsgd/communication/communicator.py",
        "means = workers.mean(codes)",
        "means = workers.sum(codes)",
        "tests/dsgd/communication/test_communicator.py -k 'records_bits and mean_of_codes'",
    ),
    Mistake(
        "dsgd/communication/compressed.py",
        "last or messages\n",
        "messages\n",
        f"{CALLS} -k previous_message",
    ),
    Mistake(
        "dsgd/communication/record.py",
        "reduce(or_, [part.now for part in parts])",
        "first.now",
        f"{CALLS} -k joins_one",
    ),
    Mistake(
        "dsgd/workers/axis.py",
        "else mean_rows(participants.counted)",
        "else jnp.mean(participants.counted)",
        "tests/cases/test_precision.py -k limit",
    ),
    Mistake(
        "algorithms/local_updates/des_loc.py",
        "optimizers.moments(names, states), via)",
        "optimizers.moments(names, states))",
        "tests/cases/test_patterns.py -k des_loc",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
