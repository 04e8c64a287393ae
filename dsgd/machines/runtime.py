"""How a process becomes one of many: JAX's own distributed runtime, joined within a time limit,
left in order.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import signal
import socket
import sys
import time
import zlib
from functools import partial
from typing import Any, NamedTuple

import jax
from jax._src import clusters, distributed

from dsgd import checks
from dsgd.machines import agreement, watch

# of JAX's kinds of clusters, those that are told by the environment of a process alone
_DETECTED = ("slurm", "ompi")
_FIRST_PORT, _PORTS = 61440, 4096  # where JAX's own detection takes its ports from
# what to say, and how to end, if JAX ends this process, as it does where the coordinator is lost
_words, _status = "", watch.STATUS


class Place(NamedTuple):
    """Where a process stands among those of its run.

    Args:
        coordinator: "host:port", of process 0.
        processes: how many.
        process_id: which one this is, from 0.
        device: of this machine's accelerators, the one that is its own; None: all.
    """

    coordinator: str
    processes: int
    process_id: int
    device: int | None = None


@checks.arguments
def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: float = 120.0,
    lost_after: float = 30.0,
) -> int:
    """Makes this process one of many of JAX's distributed runtime, over whose devices `dsgd.run`,
    `sweep` and `check` then go by default.

    To be called before anything that computes. What is not given is looked for: tasks of a Slurm
    step, processes of Open MPI's mpirun, pods of an indexed Kubernetes Job; where there is none of
    these, or one process, nothing happens. On CPUs collectives go by gloo, on GPUs by NCCL. When
    the process ends in order, it waits for the others; where it fails, they are told why.

    Args:
        coordinator: "host:port" of process 0, where it listens, and which all can reach; "auto":
            whatever JAX detects, as on TPU pods.
        processes: how many there are.
        process_id: which one this is, from 0.
        timeout: seconds until all must be there.
        lost_after: seconds of silence after which a process is lost; then the others end, with an
            error that names it (`dsgd.Lost`).

    Returns:
        How many processes there are.

    Raises:
        ValueError: some of the three but not all, a coordinator that is no host:port, a process_id
            that is none of them, a time <= 0, or JAX has computed something before.
        Lost: the coordinator cannot be reached within the timeout.
    """
    for name, seconds in (("timeout", timeout), ("lost_after", lost_after)):
        if not 0 < seconds < float("inf"):
            raise ValueError(f"join: {name} = {seconds:g}: need seconds > 0")
    place = _place(coordinator, processes, process_id, timeout)
    if place is None:
        return 1
    _check(place)
    host, port = _split(place.coordinator)
    if place.process_id:
        _need_reachable(host, port, timeout)
    _initialize(place, host, timeout)
    _begin_watch(place, lost_after)
    return place.processes


def _place(
    coordinator: str | None, processes: int | None, process_id: int | None, timeout: float
) -> Place | None:
    """As given, or as found; None where this process is the only one."""
    if coordinator == "auto":
        found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, processes, process_id, None, None, int(timeout)
        )
        if None in found[:3]:
            raise ValueError(
                "join: coordinator = 'auto', but JAX detects no cluster here: need host:port, "
                "processes and process_id"
            )
        address, number, index, devices = found
        return Place(
            str(address), int(number or 0), int(index or 0), devices[0] if devices else None
        )
    given = (coordinator, processes, process_id)
    if None not in given:
        return Place(str(coordinator), int(processes or 0), int(process_id or 0))
    found = _found(coordinator, timeout) if processes is None and process_id is None else None
    if found is None and given != (None, None, None):
        told = f"coordinator = {coordinator}, processes = {processes}, process_id = {process_id}"
        raise ValueError(
            f"join: {told}: need all three, where neither Slurm nor MPI nor Kubernetes tells the "
            "others"
        )
    return found


def _found(coordinator: str | None, timeout: float) -> Place | None:
    """What the environment says, where it is of more than one process."""
    for kind in clusters.ClusterEnv._cluster_types:
        if kind.name == "ompi" and "OMPI_MCA_orte_hnp_uri" not in os.environ:
            continue  # Open MPI 5, see below
        # A pod of Kubernetes is not always one of many.
        pod = kind.__name__ == "K8sCluster" and "JOB_COMPLETION_INDEX" in os.environ
        if (
            (pod or kind.name in _DETECTED)
            and kind.is_env_present()
            and kind.get_process_count() > 1
        ):
            address = coordinator or kind.get_coordinator_address(
                int(timeout), os.environ.get("JAX_COORDINATOR_PORT")
            )
            return Place(
                address,
                kind.get_process_count(),
                kind.get_process_id(),
                kind.get_local_process_id(),
            )
    return _open_mpi(coordinator, timeout)


def _open_mpi(coordinator: str | None, timeout: float) -> Place | None:
    """Open MPI 5 no longer has the variable in which JAX looks for the coordinator: JAX 0.10 does
    not see it, 0.11 wants mpi4py for it.
    """
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    if size == 1:
        return None
    rank, local, here = (
        int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE")
    )
    if coordinator is None and here == size:
        job = os.environ.get("PMIX_NAMESPACE", "")
        coordinator = f"127.0.0.1:{_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS}"
    if coordinator is None:
        kind = next(kind for kind in clusters.ClusterEnv._cluster_types if kind.name == "mpi4py")
        if not kind.is_env_present():
            raise ValueError(
                f"join: {size} processes of mpirun on several machines: need --coordinator "
                "host:port of rank 0, or mpi4py"
            )
        coordinator = kind.get_coordinator_address(
            int(timeout), os.environ.get("JAX_COORDINATOR_PORT")
        )
    return Place(coordinator, size, rank, local)


def _check(place: Place) -> None:
    _split(place.coordinator)
    checks.positive_int("join: processes", place.processes)
    if not 0 <= place.process_id < place.processes:
        raise ValueError(
            f"join: process_id = {place.process_id} of {place.processes} processes: need 0 to "
            f"{place.processes - 1}"
        )
    if jax.distributed.is_initialized():
        raise ValueError("join: this process has joined others before; need one call in a process")


def _split(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"join: coordinator = {coordinator!r}: need host:port, node1:12345, say")
    return host.strip("[]"), int(port)


def _need_reachable(host: str, port: int, timeout: float) -> None:
    """JAX would end the process without a word to Python."""
    end, why = time.monotonic() + timeout, "no answer"
    while (left := end - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), left).close()
            return
        except OSError as error:
            why = error.strerror or str(error)
        time.sleep(min(0.1, left))
    raise watch.Lost(
        f"the coordinator {host}:{port} cannot be reached within {timeout:g} s ({why}): need "
        "process 0 there, and an open port"
    )


def _initialize(place: Place, host: str, timeout: float) -> None:
    waiting = f"of {place.processes} processes, not all came to {place.coordinator} within {timeout:g} s, or they lost each other there"
    _last_words(f"Error: {waiting}")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM is for `interrupts`
    if address := _towards(host):
        made: Any = importlib.import_module("jaxlib._jax")
        # By itself gloo listens where the machine's name leads to, which may be another network, or
        # nowhere; JAX has no option for it.
        made.make_gloo_tcp_collectives = partial(made.make_gloo_tcp_collectives, hostname=address)
    bind = place.coordinator if address and address.startswith("127.") else None
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.processes,
            place.process_id,
            local_device_ids=place.device,
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, int(timeout)),
            coordinator_bind_address=bind,
            heartbeat_timeout_seconds=_JAX_WAITS,
        )
    except RuntimeError as error:
        if "before" in str(error):  # any JAX calls
            raise ValueError(f"join: {error}") from error
        raise watch.Lost(
            f"process {place.process_id} of {place.processes}, coordinator {place.coordinator}: "
            f"{error}"
        ) from error


# seconds: that a process is lost is for `watch` to find, long before JAX ends this one
_JAX_WAITS = 3600


def _begin_watch(place: Place, lost_after: float) -> None:
    client: Any = distributed.global_state.client
    # Watched from here on: who is killed before it has said its name is missed, too.
    watch.begin(client, place.process_id, ["which had just joined"] * place.processes, lost_after)
    atexit.register(_at_exit)
    names = agreement.exchange(
        "names of the processes", f"{socket.gethostname()}, pid {os.getpid()}"
    )
    watch.introduce(names)
    if place.process_id:
        _last_words(
            f"Error: process 0 of {place.processes} ({names[0]}), the coordinator at "
            f"{place.coordinator}, ended or cannot be reached"
        )
    else:
        _last_words("Error: JAX ended this process, for the reason above")


def leave(words: str, status: int) -> None:
    """The end of this process with an error, which the others are told; it does not return where
    there are others.

    Args:
        words: for people; what process 0 says, the others do not say again.
        status: of the process.
    """
    if not agreement.alone():
        _last_words(words, status)
        watch.leave_at_once("" if watch.end(words).said else words, status)


def _at_exit() -> None:
    """In order, it waits for the others; after an error it tells them."""
    error = getattr(sys, "last_value", None)
    if watch.end(f"{type(error).__name__}: {error}" if error else "").broken:
        watch.leave_at_once(status=1 if error else watch.STATUS)


def _towards(host: str) -> str | None:
    """This machine's address on the way to a host; None where there is none that others could
    use.
    """
    try:
        kind, *_, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(there)
            return probe.getsockname()[0]
    except OSError:
        return None


def _last_words(words: str, status: int = watch.STATUS) -> None:
    """What this process says where JAX's runtime ends it from a thread of its own, unseen by
    Python; and with which status.
    """
    global _words, _status
    if not _words:
        ctypes.CDLL(None).signal(signal.SIGABRT, _at_abort)
    _words, _status = words, status


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _at_abort(number: int) -> None:
    watch.leave_at_once(_words, _status)
