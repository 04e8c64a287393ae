"""The traffic of a compiled program, and the number of arrays that it sends, computed from the
collectives in its optimised HLO.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

# Data that a device in a group of g sends, in units of the size of its operands
_SENT = {
    "all-gather": lambda g: Fraction(g - 1),
    "all-to-all": lambda g: Fraction(g - 1, g),
    # on a ring: a reduce-scatter, then an all-gather
    "all-reduce": lambda g: Fraction(2 * (g - 1), g),
    "reduce-scatter": lambda g: Fraction(g - 1, g),
    # the mean over the group: the operand of one device is sent to g - 1 others
    "collective-broadcast": lambda g: Fraction(g - 1, g),
}
_UNKNOWN = ("ragged-all-to-all", "send")  # the instruction lacks the size or the sender

_COMPUTATION = re.compile(r"(ENTRY )?%([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, (.*))?$")
_NAME = re.compile(r"%([\w.-]+)")
_ARRAY = re.compile(r"(pred|[a-z]+(\d+))\w*\[([^\]]*)\]")
_CALLS = re.compile(
    r"\b(body|condition|calls|to_apply|branch_computations|true_computation|false_computation|called_computations)=(\{[^}]*\}|%[\w.-]+)"
)
_TRIPS = re.compile(r'known_trip_count\\?":\{\\?"n\\?":\\?"(\d+)')
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(.*?\))? \{([^}]*)\}")
_AXIS = re.compile(r"'?([^',=]+)'?=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")


class _Instruction(NamedTuple):
    shape: str
    opcode: str
    operands: list[str]
    attributes: str


class _Program(NamedTuple):
    # by name; names of instructions are unique only within a computation
    computations: dict[str, dict[str, _Instruction]]
    entry: str
    devices: int


# (program, computation, collective) -> what a device sends
_Measure = Callable[[_Program, dict[str, _Instruction], _Instruction], Fraction]


def traffic(compiled: Any) -> dict[str, int | float]:
    r"""Returns the bytes that one device sends in one execution, by collective:
    `{"all-gather": 84}`.

    The numbers are means over devices. Collectives count as often as they are executed: those in
    loops are multiplied by the number of iterations, and of the branches of a conditional the one
    that sends most counts. With b bytes of operands on each device of a group of g, a device sends

    $$ (g - 1)\, b \text{ (all-gather)}, \quad
       \tfrac{g - 1}{g}\, b \text{ (all-to-all, reduce-scatter)}, \quad
       2\,\tfrac{g - 1}{g}\, b \text{ (all-reduce, on a ring)}, $$

    and for a collective-permute b times the fraction of devices that send to another device.
    Collectives that XLA combined, promoted (on CPUs bfloat16 sums are computed in float32) or
    eliminated count as they are in the program. Collectives that send nothing have no entry.

    Args:
        compiled: a compiled program, `jax.jit(f).lower(...).compile()`.

    Raises:
        ValueError: if `compiled` is not a compiled program, a loop with collectives has an unknown
            number of iterations, or the size of a collective depends on the data.
    """
    return _measure_program(compiled, _bytes_sent)


def arrays(compiled: Any) -> dict[str, int | float]:
    """Returns the number of arrays that one execution sends, by collective:
    `{"all-reduce": 4}`. Libraries for CPUs send each array of a collective separately, with
    latencies of its own.

    Collectives count as often as in `traffic`; those that send nothing do not count.

    Args:
        compiled: as in `traffic`.

    Raises:
        ValueError: as in `traffic`.
    """
    return _measure_program(compiled, _arrays_sent)


def _measure_program(compiled: Any, of: _Measure) -> dict[str, int | float]:
    program = _read(_text(compiled))
    sent = _measure_computation(program, program.entry, of)
    return {
        kind: int(size) if size.denominator == 1 else float(size) for kind, size in sent.items()
    }


def _text(compiled: Any) -> str:
    as_text = getattr(compiled, "as_text", None)
    text = as_text() if callable(as_text) else None
    # The text of a lowered function that is not compiled is StableHLO.
    if not isinstance(text, str) or not text.startswith("HloModule"):
        raise ValueError(
            f"traffic: compiled is a {type(compiled).__name__} without optimised HLO; expected a "
            "compiled program; pass jax.jit(f).lower(...).compile()"
        )
    return text


def _read(text: str) -> _Program:
    computations: dict[str, dict[str, _Instruction]] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif found := _INSTRUCTION.match(line):
            name, shape, opcode, operands, attributes = found.groups(default="")
            current[name] = _Instruction(shape, opcode, _NAME.findall(operands), attributes)
    # These attributes are omitted if they are 1.
    counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", text.partition("\n")[0])
    return _Program(computations, entry, prod(map(int, counts)))


def _measure_computation(program: _Program, name: str, of: _Measure) -> dict[str, Fraction]:
    """Returns what a device sends in one execution of a computation."""
    computation = program.computations[name]
    return _total(
        (1, _measure_instruction(program, computation, instruction, of))
        for instruction in computation.values()
    )


def _total(parts: Iterable[tuple[int, dict[str, Fraction]]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for times, part in parts:
        for kind, size in part.items():
            # Collectives in groups of one send nothing, also in a loop of unknown length.
            if size:
                total[kind] = total.get(kind, Fraction(0)) + times * size
    return total


def _measure_instruction(
    program: _Program,
    computation: dict[str, _Instruction],
    instruction: _Instruction,
    of: _Measure,
) -> dict[str, Fraction]:
    opcode, attributes = instruction.opcode.removesuffix("-start"), instruction.attributes
    # The corresponding start is counted, and `calls=` may refer to it again.
    if opcode.endswith(("-done", "-update")):
        return {}
    if opcode in _SENT or opcode == "collective-permute":
        return {opcode: of(program, computation, instruction._replace(opcode=opcode))}
    if opcode in _UNKNOWN and "is_host_transfer=true" not in attributes:
        raise ValueError(
            f"traffic: the program contains {opcode}; expected collectives of known sizes"
        )
    called = {
        role: [_measure_computation(program, name, of) for name in _NAME.findall(names)]
        for role, names in _CALLS.findall(attributes)
    }
    if opcode == "while":
        return _sent_by_loop(called["body"][0], called["condition"][0], _TRIPS.search(attributes))
    branches = [branch for some in called.values() for branch in some]
    if opcode == "conditional":
        return max(branches, key=lambda branch: sum(branch.values()))
    return _total((1, branch) for branch in branches)


def _bytes_sent(
    program: _Program, computation: dict[str, _Instruction], collective: _Instruction
) -> Fraction:
    size = sum((_bytes(computation[name].shape) for name in collective.operands), Fraction(0))
    return size * _operands_sent(collective.opcode, collective.attributes, program.devices)


def _arrays_sent(
    program: _Program, computation: dict[str, _Instruction], collective: _Instruction
) -> Fraction:
    opcode, attributes, operands = collective.opcode, collective.attributes, collective.operands
    if not _operands_sent(opcode, attributes, program.devices):
        return Fraction(0)
    # An all-to-all may have one operand for each receiver.
    if opcode == "all-to-all" and collective.shape.startswith("("):
        return Fraction(len(operands), _groups(attributes, program.devices)[0])
    return Fraction(len(operands))


def _sent_by_loop(
    body: dict[str, Fraction], condition: dict[str, Fraction], trips: re.Match[str] | None
) -> dict[str, Fraction]:
    if trips:
        return _total([(int(trips[1]), body), (int(trips[1]) + 1, condition)])
    if kinds := sorted({*body, *condition}):
        raise ValueError(
            f"traffic: a loop with {', '.join(kinds)} has an unknown number of iterations; "
            "expected a known one; compile one round, or a fixed number of rounds"
        )
    return {}


def _bytes(shape: str) -> Fraction:
    """Returns the bytes of an array, or of all arrays of a tuple. Types of less than a byte are
    packed.
    """
    sizes = (
        (8 if kind == "pred" else int(bits)) * prod(map(int, re.findall(r"\d+", dimensions)))
        for kind, bits, dimensions in _ARRAY.findall(shape)
    )
    return Fraction(sum(sizes), 8)


def _operands_sent(opcode: str, attributes: str, devices: int) -> Fraction:
    """Returns how often a device sends its operands, the mean over devices."""
    if opcode == "collective-permute":
        listed = _PAIRS.search(attributes)
        if listed is None:
            raise ValueError(
                f"traffic: {opcode} has the attributes {attributes}; expected source_target_pairs "
                "in a known form"
            )
        pairs = re.findall(r"(\d+),(\d+)", listed[1])
        return Fraction(sum(source != target for source, target in pairs), devices)
    return sum((g * _SENT[opcode](g) for g in _groups(attributes, devices)), Fraction(0)) / devices


def _groups(attributes: str, devices: int) -> list[int]:
    """Returns the sizes of all groups."""
    if listed := _LISTED.search(attributes):
        return [group.count(",") + 1 for group in re.findall(r"\{([^}]+)\}", listed[1])] or [
            devices
        ]
    if iota := _IOTA.search(attributes):
        return [int(iota[2])] * int(iota[1])
    # mesh['x'=2,'y'=4] {'y'}; a part of an axis is 'y':(1)2, the last number its size
    if axes := _AXES.search(attributes):
        sizes = {name: int(size) for name, size in _AXIS.findall(axes[1])}
        size = prod(
            int(axis.rpartition(")")[2]) if ":(" in axis else sizes[axis.strip("'")]
            for axis in axes[2].split(",")
        )
        return [size] * (prod(sizes.values()) // size)
    raise ValueError(
        f"traffic: a collective has the attributes {attributes}; expected replica_groups in a "
        "known form"
    )
