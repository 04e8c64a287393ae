"""Processes of one machine in network namespaces of their own, over links that carry no more than
they are told to. Linux, as root.

Each namespace is a process's, without a name: the kernel takes it away, with all that is in it,
when the last process in it ends, however that is. A namespace more, the switch, has a bridge, to
which each of the others has a pair of virtual Ethernet ports (veth). Both ends of a pair are
shaped, with a token bucket (`tc ... tbf`): one is the sending port of the survey's switch, the
other its receiving port.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dsgd import checks
from dsgd.machines import local_processes
from dsgd.machines.local_processes import Site

TOOLS = ("unshare", "nsenter", "ip", "tc")
# seconds of its rate that may wait at a bucket: a lost packet would cost more than one that is late
_QUEUE = 0.5
_BURST = 0.002  # seconds of its rate that a bucket holds
_LEAST = 16_384  # bytes of bucket and queue at least: some packets
_BOUND = 30.0  # seconds that a tool may take


class Rate(NamedTuple):
    """Bits per second of a link's ends, by the machine's monotonic clock.

    Args:
        bits: one number; or several, which take turns.
        period: seconds in which each had its turn, all as long; it begins where the clock is a
            multiple of it.
    """

    bits: tuple[float, ...]
    period: float = 1.0

    def at(self, clock: float) -> float:
        """Bits per second then."""
        return self.bits[int(clock % self.period / self.period * len(self.bits))]

    def next_turn(self, clock: float) -> float:
        """The clock at the next turn."""
        turn = self.period / len(self.bits)
        return (clock // turn + 1) * turn


@checks.arguments
def shaped(
    processes: int,
    function: Callable[[], Any],
    rate: Rate,
    *,
    free: Collection[int] = (),
    timeout: float = 600.0,
) -> list[Any]:
    """As `dsgd.loopback`, in network namespaces of their own, over links of this rate.

    Args:
        processes, function, timeout: as of `dsgd.loopback`.
        rate: of every process's port, sending and receiving alike.
        free: processes whose ports are not shaped: a server with links of its own to everybody.

    Raises:
        ValueError: as `dsgd.loopback`; no Linux, no root, a tool that is missing, or not allowed; a
            rate that is no finite number of bits > 0, or a period that is not.
        ChildProcessError: as `dsgd.loopback`.
    """
    count = checks.positive_int("shaped: processes", processes)
    need_rate(rate)
    need_allowed()
    with _network(count) as hubs:
        nodes, switch = hubs[:-1], hubs[-1]
        ends = [
            end
            for i in range(count)
            if i not in free
            for end in ((nodes[i], "eth0"), (switch, f"port{i}"))
        ]
        with _kept_at(ends, rate):
            sites = [Site(_address(i), _enter(node)) for i, node in enumerate(nodes)]
            return local_processes.called("shaped", sites, function, timeout)


def need_rate(rate: Rate) -> None:
    """Raises a ValueError for what is no rate."""
    for what, numbers in (("bits", rate.bits), ("period", (rate.period,))):
        if not numbers or not all(0 < number < float("inf") for number in numbers):
            raise ValueError(
                f"shaped: a rate with {what} = "
                f"{', '.join(f'{number:g}' for number in numbers) or 'none'}: need numbers > 0"
            )


def need_allowed() -> None:
    """Raises a ValueError where there can be no namespaces and shaped links, which says what is
    missing.
    """
    if not sys.platform.startswith("linux"):
        raise ValueError(
            f"shaped links on {sys.platform}: need Linux, for network namespaces and tc"
        )
    if os.geteuid():
        raise ValueError(
            f"shaped links as user {os.geteuid()}: need root, for network namespaces and tc"
        )
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise ValueError(
            f"shaped links without {', '.join(missing)}: need these commands (util-linux, iproute2)"
        )
    _called(["unshare", "--net", "true"])


def _address(i: int) -> str:
    return f"10.0.{(i + 1) // 256}.{(i + 1) % 256}"


def _enter(node: subprocess.Popen) -> tuple[str, ...]:
    """The words before a command that is run in a namespace."""
    return ("nsenter", f"--net=/proc/{node.pid}/ns/net", "--")


def _called(command: Sequence[str], lines: str = "") -> None:
    """The tool, with these lines to read; a ValueError where it fails, with its own words."""
    try:
        done = subprocess.run(
            command, input=lines, capture_output=True, text=True, timeout=_BOUND, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"shaped links: {' '.join(command)} took more than {_BOUND:g} s"
        ) from error
    if done.returncode:
        raise ValueError(
            f"shaped links: {' '.join(command)} is not allowed here: "
            f"{' '.join((done.stderr or done.stdout).split())}"
        )


@contextmanager
def _network(count: int) -> Iterator[list[subprocess.Popen]]:
    """As many namespaces, and the switch, each held by a process that ends with this one."""
    with ExitStack() as held:
        hubs = [held.enter_context(_namespace()) for _ in range(count + 1)]
        *nodes, switch = hubs
        ports = [
            f"link add port{i} type veth peer name eth0 netns {node.pid}"
            for i, node in enumerate(nodes)
        ]
        ports += [f"link set port{i} master switch up" for i in range(count)]
        _called(
            [*_enter(switch), "ip", "-batch", "-"],
            "\n".join(["link add switch type bridge", "link set switch up", *ports, ""]),
        )
        for i, node in enumerate(nodes):
            lines = (
                "link set lo up",
                f"address add {_address(i)}/16 dev eth0",
                "link set eth0 up",
                "",
            )
            _called([*_enter(node), "ip", "-batch", "-"], "\n".join(lines))
        yield hubs


@contextmanager
def _namespace() -> Iterator[subprocess.Popen]:
    """One, held by a process that waits for the end of what it reads."""
    holder = subprocess.Popen(
        ["unshare", "--net", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        here, end = Path("/proc/self/ns/net").readlink(), time.monotonic() + _BOUND
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == here:
            if holder.poll() is not None or time.monotonic() > end:
                raise ValueError("shaped links: no network namespace could be made (unshare --net)")
            time.sleep(0.002)
        yield holder
    finally:
        holder.kill()
        holder.communicate()


@contextmanager
def _kept_at(ends: Sequence[tuple[subprocess.Popen, str]], rate: Rate) -> Iterator[None]:
    """In the block the ends of links have this rate, also where it changes; a ValueError at its end
    where they could not have it.
    """

    def shape(verb: str) -> None:
        bits = rate.at(time.monotonic() + 1e-3)
        for node in dict.fromkeys(node for node, _ in ends):
            lines = [
                f"qdisc {verb} dev {device} root {_bucket(bits)}"
                for of, device in ends
                if of is node
            ]
            _called([*_enter(node), "tc", "-batch", "-"], "\n".join([*lines, ""]))

    shape("add")
    over, failed = threading.Event(), list[ValueError]()

    def follow() -> None:
        try:
            while not over.wait(max(0.0, rate.next_turn(time.monotonic()) - time.monotonic())):
                shape("change")
        except ValueError as error:
            failed.append(error)

    following = threading.Thread(target=follow, daemon=True)
    if len(set(rate.bits)) > 1:
        following.start()
    try:
        yield
    finally:
        over.set()
        if following.is_alive():
            following.join()
    if failed:  # what was measured since then was at another rate
        raise failed[0]


def _bucket(bits: float) -> str:
    """tc's words for it: rate in bit/s, burst and queue in bytes."""
    burst, limit = (max(_LEAST, round(bits * seconds / 8)) for seconds in (_BURST, _QUEUE))
    return f"tbf rate {round(bits)}bit burst {burst} limit {limit + burst}"
