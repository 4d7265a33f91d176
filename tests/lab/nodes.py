"""Nodes as network namespaces on one bridge, or as 127.0.0.x where namespaces are not allowed.

with Lab(folder) as lab:
    lab.start("n0"), lab.start("n1"), lab.start("n2")
    lab.until(lambda: lab.newest_step() >= 10)
    lab.kill("n0")            SIGKILL of every process of the node: the kernel still says good-bye for it
    lab.blackhole("n1")       the link first, then SIGKILL: nothing reaches anybody
    lab.freeze("n2")          SIGSTOP
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spotproof.rendezvous.decide import members_of
from spotproof.store.joins import Joins
from spotproof.store.local import LocalTable
from spotproof.store.members import Memberships

ROOT = Path(__file__).resolve().parents[2]
SUBNET = "10.77.0"
RESTARTED = "the watchdog ended the process; it starts again"


def may_make_namespaces() -> bool:
    """Whether this process may make network namespaces and join them with a bridge."""
    name = f"lab{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if not made:
        return False
    bridge = ["ip", "-n", name, "link", "add", "br0", "type", "bridge"]
    works = subprocess.run(bridge, capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return works


@dataclass(slots=True, kw_only=True)
class LabNode:
    """A node: its address, its namespace ('' without namespaces) and its launcher's pid."""

    name: str
    number: int
    namespace: str
    address: str
    pid: int = 0
    cold: subprocess.Popen[bytes] | None = None


@dataclass(slots=True, kw_only=True)
class Plan:
    """What every node of a lab is started with."""

    run: str = "lab"
    backend: str = "spotproof"
    endpoint: str = ""
    nodes: tuple[int, int] = (3, 3)
    config: dict[str, Any] = field(default_factory=dict)
    steps: int = 100_000
    every: int = 5
    pace_s: float = 0.02
    group_timeout_s: float = 120.0


class Zygote:
    """The process that warm nodes are forked from; one serves many labs. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def __enter__(self) -> Self:
        try:
            assert self._answer() == "ready"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def fork(self, spec: Mapping[str, Any]) -> int:
        """Start a node's launcher; returns its pid, which is its session's too."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(spec) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the zygote has ended"
        return line

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()


class Lab:
    """A context manager: what it started is gone when it ends."""

    def __init__(self, folder: Path, zygote: Zygote, *, namespaces: bool, plan: Plan | None = None) -> None:
        self.folder = folder
        self.plan = plan or Plan()
        self.nodes: dict[str, LabNode] = {}
        self._zygote = zygote
        self._tag = secrets.token_hex(3)
        self._namespaces = namespaces
        self.table = LocalTable(folder / "table.sqlite")

    def __enter__(self) -> Self:
        try:
            if self._namespaces:
                self._make_bridge()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for node in self.nodes.values():
            self._signal(node, signal.SIGKILL)
            if node.cold is not None:
                node.cold.wait()
            if node.namespace:
                ip("netns", "del", node.namespace, check=False)
        if self._namespaces:
            ip("netns", "del", self._hub, check=False)
        self.table.close()

    @property
    def _hub(self) -> str:
        return f"lab{self._tag}-hub"

    def _make_bridge(self) -> None:
        ip("netns", "add", self._hub)
        ip("-n", self._hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self._hub, "link", "set", "br0", "up")
        names = [f"{SUBNET}.{number + 2} n{number}" for number in range(40)]
        lines = ["127.0.0.1 localhost", "::1 localhost", f"127.0.1.1 {socket.gethostname()}", *names]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")

    def _make_node(self, name: str) -> LabNode:
        number = len(self.nodes)
        if not self._namespaces:
            node = LabNode(name=name, number=number, namespace="", address=f"127.0.0.{number + 2}")
        else:
            space, port = f"lab{self._tag}-{number}", f"p{number}"
            ip("netns", "add", space)
            ip("-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", self._hub, "link", "set", port, "master", "br0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "addr", "add", f"{SUBNET}.{number + 2}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            node = LabNode(name=name, number=number, namespace=space, address=f"{SUBNET}.{number + 2}")
        self.nodes[name] = node
        return node

    def start(self, name: str, *, cold: bool = False, environment: Mapping[str, str] | None = None) -> None:
        """Start a node's torchrun: forked from a process that has torch, or as a Python of its own (`cold`)."""
        node = self.nodes.get(name) or self._make_node(name)
        plan = self.plan
        spec = {
            "log": str(self.folder / f"{name}.log"),
            "namespace": f"/run/netns/{node.namespace}" if node.namespace else "",
            "hosts": str(self.folder / "hosts"),
            "address": node.address,
            "nodes": plan.nodes,
            "run": plan.run,
            "backend": plan.backend,
            "endpoint": plan.endpoint or f"{self.nodes['n0'].address}:29400",
            # c10d finds out who hosts it by the host's name, and these nodes share one.
            "config": {**plan.config, "is_host": name == "n0"} if plan.backend == "c10d" else plan.config,
            "training": (str(self.folder), plan.steps, plan.every, plan.pace_s, plan.group_timeout_s),
            "environment": {
                "LAB_NODE": name,
                "SPOTPROOF_LOCAL_DIR": str(self.folder),
                "SPOTPROOF_INSTANCE": name,
                "GLOO_SOCKET_IFNAME": "eth0" if node.namespace else "lo",
                "OMP_NUM_THREADS": "1",
                **(environment or {}),
            },
        }
        if cold:
            argv = [sys.executable, "-m", "tests.lab.launcher", json.dumps(spec)]
            node.cold = subprocess.Popen(argv, cwd=ROOT, start_new_session=True)
            node.pid = node.cold.pid
            return
        node.pid = self._zygote.fork(spec)

    def kill(self, name: str) -> float:
        """SIGKILL of every process of the node; returns when."""
        at = time.time()
        self._signal(self.nodes[name], signal.SIGKILL)
        return at

    def blackhole(self, name: str) -> float:
        """Take the link down, then kill: no packet tells anybody. Only with namespaces."""
        node = self.nodes[name]
        assert node.namespace, "the link of a loopback address cannot be taken down"
        at = time.time()
        ip("-n", self._hub, "link", "set", f"p{node.number}", "down")
        self._signal(node, signal.SIGKILL)
        return at

    def freeze(self, name: str) -> float:
        """SIGSTOP of every process of the node."""
        at = time.time()
        self._signal(self.nodes[name], signal.SIGSTOP)
        return at

    def thaw(self, name: str) -> None:
        """SIGCONT of every process of the node."""
        self._signal(self.nodes[name], signal.SIGCONT)

    def stop_launcher(self, name: str) -> None:
        """SIGTERM to the node's torchrun, as an agent ends it."""
        os.kill(self.nodes[name].pid, signal.SIGTERM)

    def is_alive(self, name: str) -> bool:
        """Whether the node's torchrun runs."""
        node = self.nodes[name]
        if node.cold is not None:
            return node.cold.poll() is None
        return Path(f"/proc/{node.pid}").exists()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """What the workers have written, in the order of time; a line that is being written is left out."""
        found = []
        for path in self.folder.glob("events-*.jsonl"):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return sorted((one for one in found if not kinds or one["kind"] in kinds), key=lambda one: one["at"])

    def members(self) -> dict[int, str]:
        """The newest sealed membership: node by rank."""
        memberships = Memberships(self.table)
        newest = memberships.newest(self.plan.run)
        sealed = None if newest is None else memberships.generation(self.plan.run, newest.generation)
        return {rank: member.node for rank, member in enumerate(members_of(sealed))}

    def has_joined(self, name: str) -> bool:
        """Whether the node's launcher is in the rendezvous."""
        return Joins(self.table).read(self.plan.run, name) is not None

    def mark_bad(self) -> None:
        """What a function of the control plane does on an event."""
        memberships = Memberships(self.table)
        newest = memberships.newest(self.plan.run)
        assert newest is not None
        memberships.mark_bad(self.plan.run, newest.generation)

    def newest_step(self) -> int:
        """The highest step that was made."""
        return max((one["step"] for one in self.events("step")), default=0)

    def first_step_after(self, at: float) -> dict[str, Any] | None:
        """The first step of a worker that was started after `at`."""
        return next((one for one in self.events("step") if one["began_at"] > at), None)

    def until(self, holds: Callable[[], object], *, limit_s: float, what: str = "") -> None:
        """Wait until `holds`; fails with the nodes' logs."""
        give_up_at = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() >= give_up_at:
                raise AssertionError(f"{what or 'the lab'}: not within {limit_s:.0f} s\n{self.state()}\n{self.logs()}")
            time.sleep(0.05)

    def until_steps(self, count: int, *, limit_s: float) -> None:
        """Wait until `count` more steps than the most so far have been made."""
        reached = self.newest_step()
        self.until(lambda: self.newest_step() >= reached + count, limit_s=limit_s, what=f"{count} steps more")

    def until_member(self, name: str, *, limit_s: float) -> None:
        """Wait until the newest membership has the node in it."""
        self.until(lambda: name in self.members().values(), limit_s=limit_s, what=f"the seal with {name}")

    def recovered_after(self, at: float, *, limit_s: float) -> float:
        """Seconds from `at` to the first step of a new generation."""
        self.until(lambda: self.first_step_after(at), limit_s=limit_s, what="recovery")
        first = self.first_step_after(at)
        assert first is not None
        return float(first["at"] - at)

    def state(self) -> str:
        """What the table says, and which launchers run; each of these is asked for its stacks, into its log."""
        newest = Memberships(self.table).newest(self.plan.run)
        joins = [(join.node, join.ready_for, join.beats) for join in Joins(self.table).list(self.plan.run)]
        alive = [name for name in self.nodes if self.is_alive(name)]
        if self.plan.backend == "in-process":
            for name in alive:
                for pid in set(family(self.nodes[name].pid)) - {self.nodes[name].pid}:
                    os.kill(pid, signal.SIGUSR1)
            time.sleep(1.0)
        return f"newest {newest}, members {self.members()}, joins {joins}, alive {alive}"

    def logs(self) -> str:
        """The ends of all logs."""
        texts = ((path.name, path.read_text(errors="replace")[-1500:]) for path in self.folder.glob("*.log"))
        return "\n".join(f"== {name}\n{text}" for name, text in texts)

    def _signal(self, node: LabNode, number: signal.Signals) -> None:
        for pid in family(node.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def family(pid: int) -> Iterable[int]:
    """The processes of a session: a launcher and its workers; none for 0."""
    if pid <= 0:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == pid:
                    found.append(int(entry.name))
    return found


def ip(*words: str, check: bool = True) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=check, capture_output=True)
