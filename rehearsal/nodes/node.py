"""One EC2 instance: a folder that is its disk, and every process that its user data starts."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.nodes.imds import Identity, Imds
from rehearsal.plane.commands import Step, StepResult
from rehearsal.plane.failures import EmulationGap
from rehearsal.processes import Child, Processes

REPOSITORY = Path(__file__).resolve().parents[2]
# Commands of the machine image that user data may call: modules of `stubs/`, those that do nothing and say so, those
# that turn the machine off, and those that this machine's image has but this machine's hardware fails.
ACTING = ("aws", "curl", "docker")
SILENT = ("systemctl", "dnf", "yum", "modprobe", "mount", "umount", "mkfs.xfs", "mdadm", "sysctl", "logger")
FAILING = ("nvidia-smi",)
POWER_OFF = ("shutdown", "poweroff", "halt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What all nodes of a region share: the network (endpoints) and what a sabotage adds to every container."""

    endpoints: dict[str, str]
    image_env: dict[str, str]
    sabotage: Path | None


class Node:
    """A machine that is on. `disk` is its whole file system and is gone with it; logs are kept in `logs`."""

    def __init__(self, processes: Processes, *, folder: Path, logs: Path, imds: Imds, hop_limit: int) -> None:
        self.imds = imds
        self.id = imds.identity.instance_id
        self.disk = folder
        self.logs = logs
        self.frozen = False
        self.destroyed = False
        self.booted_at = time.time()
        self._hop_limit = hop_limit
        self._processes = processes
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._awake.set()

    @property
    def runtime_dir(self) -> Path:
        """What stands for /run/spotproof on this node."""
        return self.disk / "run"

    def boot(self, host: Host) -> None:
        """Starts the user data, as cloud-init does: once, as root, in /."""
        for name in ("run", "scratch", "tmp", "root", "containers"):
            (self.disk / name).mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._write_stubs(host)
        script = self.disk / "user-data"
        text = self.imds.identity.user_data
        if not text.startswith("#!"):
            raise EmulationGap(f"{self.id}: user data is no shell script; nothing else is played: {text[:60]!r}")
        script.write_text(text)
        shell = "bash" if "bash" in text.splitlines()[0] else "sh"
        self._start([shell, str(script)], self.env(host), self.logs / "user-data.log")

    def env(self, host: Host) -> dict[str, str]:
        """The root environment of the machine. The folders stand for the paths of a real disk."""
        return {
            "PATH": f"{self.disk / 'bin'}:{os.defpath}",
            "HOME": str(self.disk / "root"),
            "TMPDIR": str(self.disk / "tmp"),
            "LANG": "C.UTF-8",
            "SPOTPROOF_RUNTIME_DIR": str(self.runtime_dir),
            "SPOTPROOF_SCRATCH_DIR": str(self.disk / "scratch"),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds.url,
            "REHEARSAL_HOST_FILE": str(self.disk / "host.json"),
            **host.endpoints,
        }

    def _write_stubs(self, host: Host) -> None:
        folder = self.disk / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ACTING:
            module = f"rehearsal.nodes.stubs.{name}"
            _script(folder / name, f'PYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -m {module} "$@"')
        for name in SILENT:
            _script(folder / name, f'echo "rehearsal: {name} $*" >&2')
        for name in FAILING:
            _script(folder / name, f'echo "rehearsal: {name}: no such hardware" >&2; exit 9')
        for name in POWER_OFF:
            _script(folder / name, f'curl -s -X PUT "{self.imds.url}/rehearsal/power-off"')
        described = {
            "repository": str(REPOSITORY),
            "python": sys.executable,
            "disk": str(self.disk),
            "logs": str(self.logs),
            "hop_limit": self._hop_limit,
            "metadata": self.imds.url,
            "address": self.imds.identity.address,
            "endpoints": host.endpoints,
            "image_env": host.image_env,
            "sabotage": str(host.sabotage) if host.sabotage else "",
        }
        (self.disk / "host.json").write_text(json.dumps(described))

    def _start(self, command: list[str], env: dict[str, str], log: Path) -> Child:
        with self._lock:
            if self.destroyed:
                raise RuntimeError(f"{self.id} is off")
            child = self._processes.start(command, env=env, cwd=self.disk, log=log)
            self._children.append(child)
            return child

    def run(self, step: Step, host: Host) -> StepResult:
        """Runs one Run Command step as the SSM agent does: `sh`, as root. Waits while the node is frozen."""
        if not self._awake.wait(step.timeout_s) or self.destroyed:
            return StepResult(code=None, output="")
        log = self.logs / f"ssm-{step.name}-{time.monotonic_ns()}.log"
        script = self.disk / "tmp" / f"ssm-{time.monotonic_ns()}.sh"
        script.write_text(step.script)
        try:
            child = self._start(["sh", str(script)], self.env(host) | step.env, log)
            code: int | None = child.wait(step.timeout_s)
        except (subprocess.TimeoutExpired, RuntimeError):
            code = None
        return StepResult(code=code, output=log.read_text(errors="replace") if log.exists() else "")

    def pids(self) -> list[int]:
        """Every live process of the machine, detached or not."""
        with self._lock:
            return [pid for child in self._children for pid in child.pids()]

    def freeze(self) -> None:
        """Stops every process, as a hung hypervisor does; connections stay open and clocks run on."""
        self._awake.clear()
        self.frozen = True
        with self._lock:
            for child in self._children:
                child.stop()

    def wake(self) -> None:
        with self._lock:
            for child in self._children:
                child.go_on()
        self.frozen = False
        self._awake.set()

    def destroy(self, *, keep_disk: bool = False) -> None:
        """Power off: SIGKILL to every process, the disk removed. Runs any number of times."""
        with self._lock:
            self.destroyed = True
            children, self._children = self._children, []
        for child in children:
            child.kill()
        self._awake.set()
        self.imds.stop_once()
        if not keep_disk:
            shutil.rmtree(self.disk, ignore_errors=True)


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def identity_of(
    instance: Any, *, region: str, account: str, role: str, profile_arn: str, tags_allowed: bool, address: str
) -> Identity:
    """moto's instance as its own metadata service describes it."""
    user_data = str(instance.user_data) if instance.user_data is not None else ""
    return Identity(
        instance_id=instance.id,
        instance_type=instance.instance_type,
        lifecycle="spot" if instance.lifecycle == "spot" else "on-demand",
        zone=str(instance.availability_zone),
        region=region,
        account=account,
        image_id=instance.image_id,
        user_data=base64.b64decode(user_data).decode() if user_data else "",
        role=role,
        profile_arn=profile_arn,
        tags_allowed=tags_allowed,
        address=address,
    )
