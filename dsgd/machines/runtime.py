"""Joins a process to JAX's distributed runtime within a time limit, and leaves it in order."""

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
from dsgd.machines import agreement, heartbeat

# JAX's kinds of clusters that the environment of a process alone identifies
_DETECTED = ("slurm", "ompi")
_FIRST_PORT, _PORTS = 61440, 4096  # the range from which JAX's own detection takes its ports
# Last message and exit status if JAX ends this process, as it does if the coordinator is lost
_words, _status = "", heartbeat.STATUS


class Place(NamedTuple):
    """The position of a process among those of its run.

    Args:
        coordinator: "host:port" of process 0.
        processes: number of processes.
        process_id: index of this process, from 0.
        device: index of the accelerator of this machine that belongs to this process; None: all.
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
    """Joins this process to JAX's distributed runtime.

    `dsgd.run`, `sweep` and `check` then use the devices of all processes by default. Call it before
    any JAX computation. Arguments that are not given are detected for tasks of a Slurm step,
    processes of Open MPI's mpirun, and pods of an indexed Kubernetes Job. If none of these is
    detected, or there is only one process, the call has no effect. Collectives use gloo on CPUs and
    NCCL on GPUs. A process that exits normally waits for the others; a process that fails reports
    its error to them.

    Args:
        coordinator: "host:port" at which process 0 listens, on this one address of its machine, and
            which all processes can reach; "auto": the cluster that JAX detects, as on TPU pods.
        processes: number of processes.
        process_id: index of this process, from 0.
        timeout: time limit for all processes to join, in seconds.
        lost_after: seconds without a sign of life after which a process counts as lost. The others
            then end with an error that names it (`dsgd.PeerLost`).

    Returns:
        The number of processes.

    Raises:
        ValueError: if only some of the three arguments are given, `coordinator` is not host:port,
            `process_id` is not in the range, a time is not positive, or JAX has already computed
            something.
        PeerLost: if the coordinator cannot be reached within the time limit.
    """
    for name, seconds in (("timeout", timeout), ("lost_after", lost_after)):
        if not 0 < seconds < float("inf"):
            raise ValueError(f"join: {name} = {seconds:g}; expected finite seconds > 0")
    place = _place(coordinator, processes, process_id, timeout)
    if place is None:
        return 1
    _check(place)
    host, port = _split(place.coordinator)
    if place.process_id:
        _require_reachable(host, port, timeout)
    _initialize(place, host, timeout)
    _begin_watch(place, lost_after)
    return place.processes


def _place(
    coordinator: str | None, processes: int | None, process_id: int | None, timeout: float
) -> Place | None:
    """Returns the position as given, or as detected; None if this process is the only one."""
    if coordinator == "auto":
        found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, processes, process_id, None, None, int(timeout)
        )
        if None in found[:3]:
            raise ValueError(
                "join: coordinator = 'auto', but JAX detects no cluster; expected host:port; pass "
                "processes and process_id as well"
            )
        address, number, index, devices = found
        return Place(
            str(address), int(number or 0), int(index or 0), devices[0] if devices else None
        )
    given = (coordinator, processes, process_id)
    if None not in given:
        return Place(str(coordinator), int(processes or 0), int(process_id or 0))
    found = _find_place(coordinator, timeout) if processes is None and process_id is None else None
    if found is None and given != (None, None, None):
        values = f"coordinator = {coordinator}, processes = {processes}, process_id = {process_id}"
        raise ValueError(
            f"join: {values}; expected all three, because neither Slurm nor MPI nor Kubernetes was "
            "detected"
        )
    return found


def _find_place(coordinator: str | None, timeout: float) -> Place | None:
    """Returns the position according to the environment, if it describes several processes."""
    for kind in clusters.ClusterEnv._cluster_types:
        if kind.name == "ompi" and "OMPI_MCA_orte_hnp_uri" not in os.environ:
            continue  # Open MPI 5, see `_open_mpi`
        # A Kubernetes pod need not belong to an indexed Job.
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
    """Returns the position according to Open MPI 5; None if there is only one process.

    Open MPI 5 no longer sets the variable in which JAX looks for the coordinator: JAX 0.10 does not
    detect it, and JAX 0.11 requires mpi4py for it.
    """
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    if size == 1:
        return None
    rank, local, local_size = (
        int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "LOCAL_RANK", "LOCAL_SIZE")
    )
    if coordinator is None and local_size == size:
        job = os.environ.get("PMIX_NAMESPACE", "")
        coordinator = f"127.0.0.1:{_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS}"
    if coordinator is None:
        kind = next(kind for kind in clusters.ClusterEnv._cluster_types if kind.name == "mpi4py")
        if not kind.is_env_present():
            raise ValueError(
                f"join: coordinator = None for {size} processes of mpirun on several machines; "
                "expected host:port of rank 0; pass --coordinator, or install mpi4py"
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
            f"join: process_id = {place.process_id} of {place.processes} processes; expected 0 to "
            f"{place.processes - 1}"
        )
    if jax.distributed.is_initialized():
        raise ValueError("join: this process has already joined; expected one call per process")


def _split(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(
            f"join: coordinator = {coordinator!r}; expected host:port, such as node1:12345"
        )
    return host.strip("[]"), int(port)


def _require_reachable(host: str, port: int, timeout: float) -> None:
    """Raises `PeerLost` if the coordinator cannot be reached. JAX would end the process without a
    Python exception.
    """
    end, why = time.monotonic() + timeout, "no answer"
    while (left := end - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), left).close()
            return
        except OSError as error:
            why = error.strerror or str(error)
        time.sleep(min(0.1, left))
    raise heartbeat.PeerLost(
        f"join: the coordinator {host}:{port} cannot be reached within {timeout:g} s ({why}); "
        "expected process 0 at this address, with an open port"
    )


def _initialize(place: Place, host: str, timeout: float) -> None:
    _last_words(
        f"Error: not all of {place.processes} processes reached {place.coordinator} within "
        f"{timeout:g} s, or one was lost while they connected"
    )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # `interrupts` handles SIGTERM
    if address := _towards(host):
        made: Any = importlib.import_module("jaxlib._jax")
        # By default gloo listens at the address of the machine's name, which may belong to another
        # network or not exist. JAX has no option for the address.
        made.make_gloo_tcp_collectives = partial(made.make_gloo_tcp_collectives, hostname=address)
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.processes,
            place.process_id,
            local_device_ids=place.device,
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, int(timeout)),
            coordinator_bind_address=_listening(place.coordinator, address),
            heartbeat_timeout_seconds=_JAX_WAITS,
        )
    except RuntimeError as error:
        if "before" in str(error):  # "... must be called before any JAX computations"
            raise ValueError(f"join: {error}") from error
        raise heartbeat.PeerLost(
            f"join: process {place.process_id} of {place.processes}, coordinator "
            f"{place.coordinator}: {error}"
        ) from error


def _listening(coordinator: str, address: str | None) -> str | None:
    """Returns where process 0 listens: at its address on the route to the coordinator's host, which
    is the machine's own address even if packets to the host are forwarded to it. By default JAX
    listens at all addresses. None: JAX decides.
    """
    if address is None or "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return None
    if address == "::1" or address.startswith("127."):
        return coordinator  # which may be another address than that of its route, 127.0.0.1
    port = _split(coordinator)[1]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# JAX's heartbeat timeout in seconds. `heartbeat` detects a lost process long before.
_JAX_WAITS = 3600


def _begin_watch(place: Place, lost_after: float) -> None:
    client: Any = distributed.global_state.client
    # The watch begins before the names are known, so that it also detects a process that is killed
    # before it has sent its name.
    heartbeat.begin(
        client, place.process_id, ["which had just joined"] * place.processes, lost_after
    )
    atexit.register(_leave)
    names = agreement.all_gather(
        "names of the processes", f"{socket.gethostname()}, pid {os.getpid()}"
    )
    heartbeat.introduce(names)
    if place.process_id:
        _last_words(
            f"Error: process 0 of {place.processes} ({names[0]}), the coordinator at "
            f"{place.coordinator}, exited or cannot be reached"
        )
    else:
        _last_words("Error: JAX ended this process for the reason above")


def leave(words: str, status: int) -> None:
    """Ends this process with an error, which is reported to the others. It returns only if there
    are no others.

    Args:
        words: the message. If process 0 has already printed the same, it is not printed again.
        status: exit status of the process.
    """
    if not agreement.is_single_process():
        _last_words(words, status)
        heartbeat.leave_at_once("" if heartbeat.end(words).said else words, status)


def _leave() -> None:
    """Leaves the runtime: waits for the other processes, or reports an error to them."""
    error = getattr(sys, "last_value", None)
    if heartbeat.end(f"{type(error).__name__}: {error}" if error else "").broken:
        heartbeat.leave_at_once(status=1 if error else heartbeat.STATUS)


def _towards(host: str) -> str | None:
    """Returns this machine's address on the route to a host; None if the others could not
    use any.
    """
    try:
        kind, *_, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    except OSError:
        return None


def _last_words(words: str, status: int = heartbeat.STATUS) -> None:
    """Sets the message and the exit status for the case that JAX's runtime ends this process from
    one of its threads, without a Python exception.
    """
    global _words, _status
    if not _words:
        ctypes.CDLL(None).signal(signal.SIGABRT, _abort)
    _words, _status = words, status


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _abort(number: int) -> None:
    heartbeat.leave_at_once(_words, _status)
