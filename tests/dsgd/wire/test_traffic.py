"""Bytes counted in compiled programs are those of the collectives' definitions, on every number of
devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.wire.traffic import arrays, traffic

N, D = 16, 8
ROW = 3  # numbers in a worker's row
FLOAT = 4  # bytes


def compile_spread(function, *args, devices: int = D):
    """Returns the program of `function` on every device's blocks."""
    spread = jax.shard_map(
        function,
        mesh=workers.mesh(devices),
        in_specs=P(workers.AXIS),
        out_specs=P(workers.AXIS),
        check_vma=False,
    )
    return jax.jit(spread).lower(*args).compile()


def rows(n: int = N) -> jax.Array:
    return jnp.zeros((n, ROW), jnp.float32)


def psum(x):
    return lax.psum(x, workers.AXIS)


def scatter(x):
    return lax.psum_scatter(x, workers.AXIS, tiled=True)


TREE = {
    "float": jnp.zeros((N, 24)),
    "matrix": jnp.zeros((N, 4, 16)),
    "integer": jnp.zeros((N, 8), jnp.int32),
}
# the function, its argument, and (devices, workers of each) -> the bytes by kind
COLLECTIVES = {
    # 2 (D - 1) messages, each of a D-th of the vector
    "sum": (workers.sum, jnp.zeros((N, 24)), lambda D, n: {"all-reduce": 2 * (D - 1) * 96 // D}),
    # XLA may sum the leaves in one collective of many operands
    "tree": (workers.sum, TREE, lambda D, n: {"all-reduce": 2 * (D - 1) * 96 * 4 // D}),
    "gather": (workers.gather, rows(), lambda D, n: {"all-gather": (D - 1) * n * ROW * FLOAT}),
    # from each of the device's n workers to each of the peer's n
    "all_to_all": (
        workers.all_to_all,
        jnp.zeros((N, N, 5), jnp.uint8),
        lambda D, n: {"all-to-all": (D - 1) * n * n * 5},
    ),
    "scattered": (
        scatter,
        jnp.zeros((8 * 24,)),
        lambda D, n: {"reduce-scatter": (D - 1) * 192 // D // D * FLOAT},
    ),
    "shift by 0": (lambda x: workers.ring_shift(x, 0), rows(), lambda D, n: {}),
    "shift by 2": (
        lambda x: workers.ring_shift(x, 2),
        rows(),
        lambda D, n: {"collective-permute": 2 * ROW * FLOAT},
    ),
}


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_send_the_bytes_of_their_definitions(name, devices):
    function, given, expected = COLLECTIVES[name]
    found = traffic(compile_spread(function, given, devices=devices))
    assert found == expected(devices, N // devices)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sum", {"all-reduce": 1}),
        ("tree", {"all-reduce": 3}),
        ("gather", {"all-gather": 1}),
        ("all_to_all", {"all-to-all": 1}),
        ("shift by 0", {}),
        ("shift by 2", {"collective-permute": 1}),
    ],
)
def test_arrays_are_counted_by_collective(name, expected):
    function, given, _ = COLLECTIVES[name]
    assert arrays(compile_spread(function, given)) == expected
    assert arrays(compile_spread(function, given, devices=1)) == {}


def test_arrays_in_loops_are_multiplied():
    assert arrays(
        compile_spread(repeat(5, lambda y: jnp.sin(workers.ring_shift(y, 1))), rows())
    ) == {"collective-permute": 5}


def test_one_device_sends_nothing():
    """Neither does a collective over a group of one, which remains in the program."""

    def everything(x):
        return (
            workers.sum(x)[None]
            + workers.gather(x)
            + workers.ring_shift(x, 1)
            + psum(x)
            + lax.all_gather(x, workers.AXIS, tiled=True)
        )

    assert traffic(compile_spread(everything, rows(), devices=1)) == {}
    endless = compile_spread(
        lambda x: lax.while_loop(lambda y: y[0, 0] < 5, lambda y: psum(y) + 1, x), rows(), devices=1
    )
    assert traffic(endless) == {}


def test_only_devices_that_send_to_others_count():
    """Three of eight devices send their blocks, two of them to themselves."""
    pairs = [(0, 0), (1, 1), (2, 5), (5, 2), (3, 4)]
    program = compile_spread(lambda x: lax.ppermute(x, workers.AXIS, pairs), rows(D))
    assert traffic(program) == {"collective-permute": 3 / 8 * ROW * FLOAT}


def test_groups_of_devices_send_among_themselves():
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    program = compile_spread(
        lambda x: lax.psum(x, workers.AXIS, axis_index_groups=groups), jnp.zeros((D, 24))
    )
    assert traffic(program) == {"all-reduce": 2 * (4 - 1) * (24 // 4) * FLOAT}


def repeat(times: int, function):
    return lambda x: lax.fori_loop(0, times, lambda _, y: function(y), x)


def test_nested_loops_multiply():
    """A gather is executed five times, and three shifts in each iteration."""
    block = N // D * ROW * FLOAT

    def outer(y):
        return repeat(3, lambda z: jnp.sin(workers.ring_shift(z, 1)))(y) + workers.gather(y).sum()

    assert traffic(compile_spread(repeat(5, outer), rows())) == {
        "all-gather": 5 * (D - 1) * block,
        "collective-permute": 5 * 3 * ROW * FLOAT,
    }


def test_a_loop_that_ends_on_a_condition_is_refused_only_if_it_sends():
    def until(send):
        return lambda x: psum(lax.while_loop(lambda y: y[0, 0] < 5, lambda y: send(y) + 1, x))

    with pytest.raises(
        ValueError, match=r"loop with collective-permute has an unknown number.* compile one round"
    ):
        traffic(compile_spread(until(lambda y: workers.ring_shift(y, 1)), rows()))
    block = 1 * ROW * FLOAT
    assert traffic(compile_spread(until(jnp.sin), rows(D))) == {
        "all-reduce": 2 * (D - 1) * block / D
    }


@pytest.mark.parametrize("swapped", [False, True])
def test_a_conditional_counts_as_its_branch_that_sends_most(swapped):
    block = N // D * ROW * FLOAT
    branches = [lambda y: workers.ring_shift(y, 1), lambda y: y + workers.gather(y).sum()]
    program = compile_spread(
        lambda x: lax.cond(x[0, 0] > 5, *branches[:: -1 if swapped else 1], x), rows()
    )
    assert traffic(program) == {"all-gather": (D - 1) * block}


@pytest.mark.parametrize(
    "given",
    [jax.jit(lambda x: x), jax.jit(lambda x: x).lower(1.0), "HloModule", None],
    ids=["jitted", "lowered", "text", "none"],
)
def test_functions_that_are_not_compiled_are_refused_with_a_remedy(given):
    with pytest.raises(
        ValueError,
        match=rf"traffic: compiled is a {type(given).__name__} .*\.lower\(\.\.\.\)\.compile",
    ):
        traffic(given)


# Hand-written programs, for instructions that XLA does not emit for CPUs.


class Written:
    """An optimized HLO module with these instructions in its entry computation."""

    def __init__(self, entry: str, computations: str = "", header: str = f"num_partitions={D}"):
        main = f"ENTRY %main (p: f32[4]) -> f32[4] {{\n{entry}\n}}"
        self.text = f"HloModule written, {header}\n\n{computations}\n{main}\n"

    def as_text(self) -> str:
        return self.text


ALL = "replica_groups={{0,1,2,3,4,5,6,7}}"
RING = "source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}"


P4 = "  %p = f32[4]{0} parameter(0)\n"


def shift_by_one(kind: str = "f32[4]{0}") -> str:
    return f"  %p = {kind} parameter(0)\n  %s = {kind} collective-permute(%p), channel_id=1, {RING}"


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[4]{0}", 16),
        ("f32[]", 4),
        ("f32[0,3]{1,0}", 0),
        ("f32[2,3]{1,0:T(8,128)}", 24),
        ("bf16[2,3]{1,0:T(8,128)(2,1)S(1)}", 12),
        ("pred[5]{0}", 5),
        ("s4[6]{0:E(4)}", 3),
        ("u4[3]{0}", 1.5),
        ("u2[8]{0}", 2),
        *((f"{sign}{bits}[3]{{0}}", 3 * bits // 8) for sign in "su" for bits in (8, 16, 32, 64)),
        ("f16[3]", 6),
        ("f64[3]", 24),
        ("c64[3]", 24),
        ("c128[3]", 48),
        ("f8e4m3fn[3]", 3),
        ("f8e5m2[3]", 3),
        ("f4e2m1fn[4]", 2),
        ("(f32[4]{0}, u8[3]{0})", 19),
        ("((f32[4]{0:T(128)}, token[]), /*index=5*/s32[])", 20),
    ],
)
def test_bytes_of_types_and_layouts(shape, size):
    """A shift sends every device's operand once."""
    assert traffic(Written(shift_by_one(shape))) == ({"collective-permute": size} if size else {})


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", 2),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", 4),
        ("replica_groups={}", 8),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", 2),
        ("replica_groups=mesh['x'=8] {'x'}", 8),
        ("replica_groups=mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}", 4),
        ("replica_groups=mesh['x'=2,'y'=2,'z'=2] {'x','z'}", 4),
        ("replica_groups=mesh['x'=8] {'x':(2)4}", 4),
        ("replica_groups=mesh[x=4,y=2] {y}", 2),
    ],
)
@pytest.mark.parametrize(
    "attributes", ["channel_id=1, {}, use_global_device_ids=true, dimensions={{0}}", "{}"]
)
def test_forms_of_groups(groups, size, attributes):
    gather = f"  ROOT %g = f32[{4 * size}]{{0}} all-gather(%p), {attributes.format(groups)}"
    assert traffic(Written(P4 + gather)) == {"all-gather": (size - 1) * 4 * FLOAT}


def computation(name: str, kind: str) -> str:
    """Returns one shift of an operand of this type, under the same names in every computation."""
    return f"%{name} (p: {kind}) -> {kind} {{\n{shift_by_one(kind + '{0}')}\n}}\n"


REDUCED = f"{P4}  %r = f32[4]{{0}} all-reduce(%p), replica_groups={{}}, to_apply=%add"
UNEQUAL = "replica_groups={{0,1,2},{3,4,5},{6,7}}"  # six devices send to two peers and two to one
WRITTEN = {
    "groups of different sizes": (
        f"{P4}  %g = f32[12]{{0}} all-gather(%p), {UNEQUAL}",
        {"all-gather": (6 * 2 + 2 * 1) / 8 * 4 * FLOAT},
    ),
    "groups of one": (REDUCED.replace("{}", "[8,1]<=[8]"), {}),
    "a broadcast is received by all but one": (
        f"{P4}  %b = f32[4]{{0}} collective-broadcast(%p), {ALL}",
        {"collective-broadcast": 7 / 8 * 4 * FLOAT},
    ),
    "no pairs": (shift_by_one().replace(RING, "source_target_pairs={}"), {}),
    "operands with their types": (
        shift_by_one().replace("(%p)", "(f32[4]{0:T(8,128)} %p)"),
        {"collective-permute": 4 * FLOAT},
    ),
    "a transfer to the host": (
        f"{P4}  %s = (f32[4]{{0}}, u32[]) send(%p, %p), channel_id=1, is_host_transfer=true",
        {},
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_programs_for_other_platforms_are_read(name):
    """Computations that are not called send nothing."""
    text, sent = WRITTEN[name]
    assert traffic(Written(text, computation("uncalled", "u8[1]"))) == sent


@pytest.mark.parametrize("header", ["num_partitions=4", "replica_count=4"])
def test_the_header_contains_the_number_of_devices(header):
    assert traffic(Written(REDUCED, header=header)) == {"all-reduce": 2 * 3 * FLOAT}


ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""

ASYNC = f"""
  %p = f32[8]{{0}} parameter(0)
  %q = u8[8]{{0}} parameter(1)
  %gs = (f32[8]{{0}}, f32[64]{{0}}) all-gather-start(%p), channel_id=1, {ALL}, dimensions={{0}}
  %gd = f32[64]{{0}} all-gather-done(%gs)
  %ps = (f32[8]{{0}}, f32[8]{{0}}, u32[], u32[]) collective-permute-start(%p), channel_id=2, {RING}
  %pd = f32[8]{{0}} collective-permute-done(%ps)
  %rs = (f32[8]{{0}}, u8[8]{{0}}) all-reduce-start(%p, %q), channel_id=3, {ALL}, to_apply=%add
  %rd = (f32[8]{{0}}, u8[8]{{0}}) all-reduce-done(%rs)
  %ss = ((f32[8]{{0}}), f32[1]{{0}}) reduce-scatter-start(%p), channel_id=4, {ALL}, to_apply=%add
  %su = ((f32[8]{{0}}), f32[1]{{0}}) reduce-scatter-update(%ss)
  %sd = f32[1]{{0}} reduce-scatter-done(%su)
  %as = ((u8[8]{{0}}), u8[8]{{0}}) async-start(%q), calls=%exchange
  %au = ((u8[8]{{0}}), u8[8]{{0}}) async-update(%as), calls=%exchange
  %ad = u8[8]{{0}} async-done(%au), calls=%exchange
"""

EXCHANGE = f"""
%exchange (x: u8[8]) -> u8[8] {{
  %x = u8[8]{{0}} parameter(0)
  ROOT %e = u8[8]{{0}} all-to-all(%x), channel_id=5, {ALL}, dimensions={{0}}
}}, execution_thread="parallel"
"""


def test_asynchronous_pairs_count_once():
    assert traffic(Written(ASYNC, ADD + EXCHANGE)) == {
        "all-gather": 7 * 8 * FLOAT,
        "collective-permute": 8 * FLOAT,
        "all-reduce": 2 * 7 * (FLOAT + 1),  # pieces of one float and one byte
        "reduce-scatter": 7 * FLOAT,
        "all-to-all": 7 * 1,
    }


@pytest.mark.parametrize(
    ("instruction", "count"),
    [
        ("fusion(%q), kind=kCustom, calls=%one", 1),
        ("call(%q), to_apply=%ten", 10),
        ('custom-call(%q), custom_call_target="t", called_computations={%one, %ten}', 11),
        ("call-start(%q), to_apply=%one", 1),
        ("conditional(%q, %q, %q), true_computation=%one, false_computation=%ten", 10),
        ("conditional(%q, %q, %q, %q), branch_computations={%one, %ten, %one}", 10),
        (
            "while(%q), condition=%none, body=%one, "
            'backend_config={"dynamic":[],"known_trip_count":{"n":"7"},"x":1}',
            7,
        ),
        (
            r"while(%q), condition=%none, body=%one, "
            r'backend_config="{\"known_trip_count\":{\"n\":\"7\"}}"',
            7,
        ),
        (
            'while(%q), condition=%ten, body=%one, backend_config={"known_trip_count":{"n":"7"}}',
            7 + 8 * 10,
        ),
        ('while(%q), condition=%none, body=%one, backend_config={"known_trip_count":{"n":"0"}}', 0),
        ("while(%q), condition=%none, body=%none", 0),
    ],
)
def test_called_computations_are_followed(instruction, count):
    """Computations shift by one byte and by ten; the condition of a loop is evaluated once more
    than its body.
    """
    computations = (
        computation("one", "u8[1]") + computation("ten", "u8[10]") + ADD.replace("%add ", "%none ")
    )
    sent = traffic(
        Written(
            f"  %q = f32[4]{{0}} parameter(0)\n  ROOT %r = f32[4]{{0}} {instruction}", computations
        )
    )
    assert sent == ({"collective-permute": count} if count else {})


def test_a_loop_whose_condition_sends_is_refused_without_a_count():
    text = (
        "  %q = f32[4]{0} parameter(0)\n  ROOT %r = f32[4]{0} while(%q), condition=%one, body=%none"
    )
    with pytest.raises(ValueError, match="loop with collective-permute"):
        traffic(Written(text, computation("one", "u8[1]") + ADD.replace("%add ", "%none ")))


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (
            "ragged-all-to-all(%p, %p, %p, %p, %p, %p), replica_groups={}",
            "ragged-all-to-all; expected collectives of known sizes",
        ),
        ("send(%p, %p), channel_id=1", "send; expected collectives of known sizes"),
        ("all-gather(%p), replica_groups=@somehow", "expected replica_groups in a known form"),
        ("all-gather(%p)", "expected replica_groups in a known form"),
        ("collective-permute(%p), channel_id=1", "expected source_target_pairs in a known form"),
    ],
)
def test_unreadable_programs_are_refused(instruction, reason):
    with pytest.raises(ValueError, match=reason):
        traffic(Written(f"{P4}  ROOT %r = f32[4]{{0}} {instruction}"))
