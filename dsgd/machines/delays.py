"""A relay that delays the frames between pairs of network devices. Linux only, as root.

The kernels of many machines have no queue that delays packets (`netem`). The relay instead creates
pairs of TAP devices, and reads and writes their frames: a frame that the kernel sends on one device
of a pair is received on the other one a constant time later, in both directions. The relay is this
file, executed as a program without other modules. It ends, and its devices disappear, when
its standard input ends: when the process that started it closes it, or ends for any reason.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

DEVICE = Path("/dev/net/tun")
_BOUND = 30.0  # seconds within which the relay creates the devices
# Bytes of a packet, as a time at the link's rate, and at least and at most. Long packets are fewer
# for the relay; short ones do not keep others waiting.
_PACKET, _LEAST, _MOST = 0.001, 1_500, 9_000
_FRAME = _MOST + 64  # maximal bytes of a frame, with its headers
_AT_ONCE = 16  # frames read from a device before those that are due are written
# From linux/if_tun.h.
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def require_devices() -> None:
    """Raises ValueError if TAP devices are not available."""
    if not DEVICE.exists():
        raise ValueError(
            f"shaped: latency > 0, but {DEVICE} does not exist; expected TAP devices; load the "
            "kernel's module tun (modprobe tun), or pass latency=0"
        )


def mtu(bits: float) -> int:
    """Returns the maximal bytes of a packet on links of this rate, in bits per second."""
    return min(max(_LEAST, round(bits * _PACKET / 8)), _MOST)


@contextmanager
def pairs(enter: Sequence[str], names: Sequence[tuple[str, str]], seconds: float) -> Iterator[None]:
    """Creates pairs of devices, and forwards the frames between them within the block. A device may
    be moved to another network namespace.

    Args:
        enter: prefix of a command, which enters the network namespace of the devices.
        names: names of both devices of each pair.
        seconds: delay of every frame.

    Raises:
        ValueError: if the devices cannot be created; at the end of the block, if the relay ended
            before it.
    """
    flat = [name for pair in names for name in pair]
    relay = subprocess.Popen(
        [*enter, sys.executable, "-I", __file__, repr(seconds), *flat],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert relay.stdout is not None
        ready, *_ = select.select([relay.stdout], [], [], _BOUND)
        if not ready or not relay.stdout.readline():
            words = _failure(relay, "created no TAP devices")
            raise ValueError(f"{words}; expected permission to create them")
        try:
            yield
        finally:
            if relay.poll() is not None:  # measurements since then were taken without links
                raise ValueError(_failure(relay, "ended early"))
    finally:
        relay.kill()
        relay.communicate()


def _failure(relay: subprocess.Popen, what: str) -> str:
    relay.kill()
    *_, last = relay.communicate()[1].strip().splitlines() or ["no message"]
    return f"shaped: the relay that delays frames {what} ({last})"


def _open_device(name: str) -> int:
    """Creates a TAP device and returns its file descriptor."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(
        descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
    )
    return descriptor


def _relay(seconds: float, names: Sequence[str]) -> None:
    """Forwards frames until the standard input ends.

    All frames have the same delay, so they are due in the order in which they were read.
    """
    with suppress(PermissionError):
        os.nice(-10)  # a link does not wait for the processes that compute
    descriptors = [_open_device(name) for name in names]
    other = {descriptor: descriptors[i ^ 1] for i, descriptor in enumerate(descriptors)}
    print("ready", flush=True)
    stop, waiting = sys.stdin.fileno(), deque[tuple[float, int, bytes]]()
    while True:
        # select has a timeout in microseconds, epoll one in milliseconds.
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, *_ = select.select([stop, *descriptors], [], [], timeout)
        if stop in readable:
            return
        for descriptor in readable:
            waiting.extend(
                (time.monotonic() + seconds, other[descriptor], frame)
                for frame in _frames(descriptor)
            )
        while waiting and waiting[0][0] <= time.monotonic():
            _, descriptor, frame = waiting.popleft()
            _write(descriptor, frame)


def _frames(descriptor: int) -> Iterator[bytes]:
    """Yields the frames that can be read, up to a maximal number."""
    try:
        for _ in range(_AT_ONCE):
            yield os.read(descriptor, _FRAME)
    except OSError:  # none is left, or the device is not up yet
        return


def _write(descriptor: int, frame: bytes) -> None:
    """Writes a frame; it is lost if the device is not up, as on a cable."""
    try:
        os.write(descriptor, frame)
    except OSError:
        return


if __name__ == "__main__":
    _relay(float(sys.argv[1]), sys.argv[2:])
