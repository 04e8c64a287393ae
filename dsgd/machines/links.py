"""Local processes in separate network namespaces, connected by links of limited rate and given
latency. Linux only, as root.

Each process has its own unnamed namespace, which the kernel deletes together with its contents when
the last process in it ends. One more namespace, the switch, contains a bridge, to which each of the
others is connected by a pair of virtual Ethernet ports (veth). Both ends of a pair are shaped by a
token bucket (`tc ... tbf`): one is the process's sending port at the survey's switch, the other its
receiving port. If the links have a latency, a pair consists of two TAP devices, between which a
relay (`delays`) forwards the frames half of the latency later.
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
from dsgd.machines import delays, local_processes
from dsgd.machines.local_processes import Site

TOOLS = ("unshare", "nsenter", "ip", "tc")
# Length of a bucket's queue, in seconds at its rate: a lost packet would cost more than a late one.
_QUEUE = 0.5
# Size of a bucket, in seconds at its rate, and at least in bytes. A link has no bucket: this is
# what timers need that are a little late.
_BURST, _LEAST_BURST = 0.0002, 3_000
_LEAST_QUEUE = 16_384  # minimum size of a bucket's queue, in bytes
_MTU = 1_500  # bytes of a packet on a pair of virtual Ethernet ports
_HEADERS = 64  # maximal bytes of a frame besides its packet
_BOUND = 30.0  # time limit of a command, in seconds
# Settings of TCP with which a message takes the latency plus its size divided by the rate. By
# default the window is small again after a pause, and the receiver's begins at 64 KB; BBR, the
# default of some systems, sends less from time to time to measure the round trip.
_TCP = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 4194304 33554432",
    "tcp_wmem": "4096 4194304 33554432",
}


class Rate(NamedTuple):
    """Rate of the ends of a link, in bits per second, as a function of the machine's monotonic
    clock.

    Args:
        bits: one rate, or several rates that alternate.
        period: seconds in which each rate is used once, for equal durations. Periods begin when the
            clock is a multiple of it.
    """

    bits: tuple[float, ...]
    period: float = 1.0

    def at(self, clock: float) -> float:
        """Returns the rate at this time, in bits per second."""
        return self.bits[int(clock % self.period / self.period * len(self.bits))]

    def next_turn(self, clock: float) -> float:
        """Returns the time of the next change of the rate."""
        turn = self.period / len(self.bits)
        return (clock // turn + 1) * turn


@checks.arguments
def shaped(
    processes: int,
    function: Callable[[], Any],
    rate: Rate,
    *,
    latency: float = 0.0,
    free: Collection[int] = (),
    timeout: float = 600.0,
) -> list[Any]:
    """Calls a function in local processes, as `dsgd.run_local_processes` does, connected by links
    of a limited rate and given latency.

    Each process runs in its own network namespace.

    Args:
        processes, function, timeout: as in `dsgd.run_local_processes`.
        rate: rate of every process's port, for sending and for receiving.
        latency: seconds that a packet takes from one process to another one, in addition to those
            of this machine (tens of microseconds) and to its size divided by the rate.
        free: indices of processes whose ports are not shaped, for example a server with a separate
            link to every worker.

    Raises:
        ValueError: as in `dsgd.run_local_processes`; if the platform is not Linux, the user is not
            root, or a command is missing or not permitted; if `rate` does not have finite rates > 0
            and a finite period > 0; if `latency` is negative or not finite, or > 0 without TAP
            devices.
        ChildProcessError: as in `dsgd.run_local_processes`.
    """
    count = checks.positive_int("shaped: processes", processes)
    require_rate(rate)
    require_allowed(latency)
    mtu = delays.mtu(max(rate.bits)) if latency else _MTU
    with _network(count, latency, mtu) as hubs:
        nodes, switch = hubs[:-1], hubs[-1]
        ends = [
            end
            for i in range(count)
            if i not in free
            for end in ((nodes[i], "eth0"), (switch, f"port{i}"))
        ]
        with _kept_at(ends, rate, mtu):
            sites = [Site(_address(i), _enter(node)) for i, node in enumerate(nodes)]
            return local_processes.call("shaped", sites, function, timeout)


def require_rate(rate: Rate) -> None:
    """Raises ValueError if the rate is not valid."""
    for what, numbers in (("bits", rate.bits), ("period", (rate.period,))):
        if not numbers or not all(0 < number < float("inf") for number in numbers):
            raise ValueError(
                f"shaped: rate has {what} = "
                f"{', '.join(f'{number:g}' for number in numbers) or 'none'}; expected finite "
                "numbers > 0"
            )


def require_allowed(latency: float = 0.0) -> None:
    """Raises ValueError if network namespaces and links of this latency are not available. The
    message reports what is missing.
    """
    checks.number("shaped: latency", latency, "[0, inf)")
    if not sys.platform.startswith("linux"):
        raise ValueError(
            f"shaped: the platform is {sys.platform}; expected Linux, for network namespaces and tc"
        )
    if os.geteuid():
        raise ValueError(
            f"shaped: the user id is {os.geteuid()}; expected root (0), for network namespaces and "
            "tc"
        )
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise ValueError(
            f"shaped: {', '.join(missing)} not found; expected these commands; install util-linux "
            "and iproute2"
        )
    if latency:
        delays.require_devices()
    _call(["unshare", "--net", "true"])


def _address(i: int) -> str:
    return f"10.0.{(i + 1) // 256}.{(i + 1) % 256}"


def _enter(node: subprocess.Popen) -> tuple[str, ...]:
    """Returns the prefix of a command that is executed in a namespace."""
    return ("nsenter", f"--net=/proc/{node.pid}/ns/net", "--")


def _call(command: Sequence[str], lines: str = "") -> None:
    """Runs a command with these input lines.

    Raises:
        ValueError: if it fails, with the command's own error message.
    """
    try:
        done = subprocess.run(
            command, input=lines, capture_output=True, text=True, timeout=_BOUND, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"shaped: {' '.join(command)} took {_BOUND:g} s or more; expected it to finish earlier"
        ) from error
    if done.returncode:
        raise ValueError(
            f"shaped: {' '.join(command)} failed: "
            f"{' '.join((done.stderr or done.stdout).split())}; expected permission to run it"
        )


@contextmanager
def _network(count: int, latency: float, mtu: int) -> Iterator[list[subprocess.Popen]]:
    """Creates `count` namespaces and the switch, each kept alive by a process that ends with this
    one, and the links between them.
    """
    with ExitStack() as held:
        hubs = [held.enter_context(_namespace()) for _ in range(count + 1)]
        *nodes, switch = hubs
        ends = [f"name eth0 netns {node.pid}" for node in nodes]
        if latency:
            pairs = [(f"port{i}", f"node{i}") for i in range(count)]
            held.enter_context(delays.pairs(_enter(switch), pairs, latency / 2))
            ports = [f"link set node{i} mtu {mtu} {end}" for i, end in enumerate(ends)]
            ports += [f"link set port{i} mtu {mtu}" for i in range(count)]
        else:
            ports = [f"link add port{i} type veth peer {end}" for i, end in enumerate(ends)]
        ports += [f"link set port{i} master switch up" for i in range(count)]
        _call(
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
            _call([*_enter(node), "ip", "-batch", "-"], "\n".join(lines))
            settings = [f'echo "{value}" > /proc/sys/net/ipv4/{key}' for key, value in _TCP.items()]
            _call([*_enter(node), "sh", "-ec", "; ".join(settings)])
        yield hubs


@contextmanager
def _namespace() -> Iterator[subprocess.Popen]:
    """Creates a namespace, kept alive by a process that waits for the end of its standard input."""
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
                raise ValueError(
                    "shaped: unshare --net created no network namespace; expected permission to "
                    "create one"
                )
            time.sleep(0.002)
        yield holder
    finally:
        holder.kill()
        holder.communicate()


@contextmanager
def _kept_at(
    ends: Sequence[tuple[subprocess.Popen, str]], rate: Rate, mtu: int = _MTU
) -> Iterator[None]:
    """Keeps the ends of links, with packets of up to `mtu` bytes, at this rate within the block,
    also when the rate changes.

    Raises:
        ValueError: at the end of the block, if the rate could not be set.
    """

    def shape(verb: str) -> None:
        bits = rate.at(time.monotonic() + 1e-3)
        for node in dict.fromkeys(node for node, _ in ends):
            lines = [
                f"qdisc {verb} dev {device} root {_bucket(bits, mtu)}"
                for of, device in ends
                if of is node
            ]
            _call([*_enter(node), "tc", "-batch", "-"], "\n".join([*lines, ""]))

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
    if failed:  # measurements since then were taken at another rate
        raise failed[0]


def _bucket(bits: float, mtu: int) -> str:
    """Returns the arguments of tc: the rate in bit/s, burst and queue in bytes."""
    burst = max(_LEAST_BURST, mtu + _HEADERS, round(bits * _BURST / 8))
    limit = max(_LEAST_QUEUE, round(bits * _QUEUE / 8))
    return f"tbf rate {round(bits)}bit burst {burst} limit {limit + burst}"
