"""`docker`: runs the container's command line as a process of the node, with the container's environment.

Played are the environment that `docker run` composes (nothing of the host's leaks in), bind mounts and named volumes,
 the image's entrypoint and command, names, --restart, detached and foreground runs, exit status, logs, rm, stop.
Not played are an own file system, own network, limits. The image is always the one of trainer_image/Dockerfile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.nodes.stubs import dockerfile

FLAGS = {"-d", "--detach", "--rm", "--init", "--privileged", "-i", "--interactive", "-t", "--tty", "--read-only"}
MULTIPLE = {"-v", "--volume", "-e", "--env", "--env-file", "--mount", "--ulimit", "--log-opt", "--tmpfs", "--device"}
SINGLE = {"--name", "--network", "--net", "--entrypoint", "--restart", "--user", "-u", "-w", "--workdir", "--gpus"}
SINGLE |= {"--shm-size", "--memory", "-m", "--memory-swap", "--cpus", "--ipc", "--pid", "--log-driver", "--pull"}
SINGLE |= {"--hostname", "--stop-timeout", "--stop-signal", "--cap-add", "--security-opt", "--runtime", "--label"}
RESTART_PAUSE_S = 0.2


class Refused(Exception):
    """Docker would refuse this, or the stub does not play it. The text says which."""


@dataclass(kw_only=True)
class Run:
    """One `docker run` command line."""

    image: str
    argv: list[str]
    flags: set[str] = field(default_factory=set)
    single: dict[str, str] = field(default_factory=dict)
    multiple: dict[str, list[str]] = field(default_factory=dict)

    def many(self, *names: str) -> list[str]:
        return [value for name in names for value in self.multiple.get(name, [])]

    def one(self, *names: str, default: str = "") -> str:
        return next((self.single[name] for name in names if name in self.single), default)


def read_run(words: list[str]) -> Run:
    """Everything before the image is docker's, everything after it the container's."""
    run, left = Run(image="", argv=[]), list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            run.image, run.argv = word, left
            return run
        name, joined, value = word.partition("=")
        if name in FLAGS or (not name.startswith("--") and set(name[1:]) <= set("dit")):
            run.flags |= {name} if name.startswith("--") else {f"-{letter}" for letter in name[1:]}
            continue
        if name not in MULTIPLE | SINGLE:
            raise Refused(f"the option {name} is not played")
        value = value if joined else left.pop(0)
        if name in MULTIPLE:
            run.multiple.setdefault(name, []).append(value)
        else:
            run.single[name] = value
    raise Refused("'docker run' requires an image")


class Machine:
    """The node that this docker runs on."""

    def __init__(self, described: dict[str, Any]) -> None:
        self.repository = Path(described["repository"])
        self.python = str(described["python"])
        self.disk = Path(described["disk"])
        self.logs = Path(described["logs"])
        self.hop_limit = int(described["hop_limit"])
        self.metadata = str(described["metadata"])
        self.address = str(described["address"])
        self.endpoints = dict(described["endpoints"])
        self.image_env = dict(described["image_env"])
        self.sabotage = str(described["sabotage"])

    def container(self, name: str) -> Path:
        return self.disk / "containers" / name

    def image(self) -> dockerfile.Image:
        text = (self.repository / "trainer_image" / "Dockerfile").read_text()
        return dockerfile.read(text, self.repository)


def mounts(machine: Machine, run: Run) -> dict[str, Path]:
    """Container path -> host path of every mount. A missing host folder is made, as docker makes it."""
    found: dict[str, Path] = {}
    for volume in run.many("-v", "--volume"):
        source, target, *_ = volume.split(":")
        found[target] = Path(source) if source.startswith("/") else machine.disk / "volumes" / source
    for mount in run.many("--mount"):
        fields = dict(part.partition("=")[::2] for part in mount.split(","))
        target = fields.get("target") or fields.get("dst") or fields["destination"]
        found[target] = Path(fields.get("source") or fields.get("src") or machine.disk / "volumes" / uuid.uuid4().hex)
    for folder in found.values():
        if not folder.exists():
            folder.mkdir(parents=True)
    return found


def moved(text: str, places: dict[str, Path]) -> str:
    """A path of the container as the path of this machine; any other text as it is."""
    for target in sorted(places, key=len, reverse=True):
        if text == target or text.startswith(target.rstrip("/") + "/"):
            return str(places[target]) + text[len(target.rstrip("/")) :]
    return text


def environment(machine: Machine, run: Run, image: dockerfile.Image, places: dict[str, Path]) -> dict[str, str]:
    """What the container's processes see: the image's variables, then the command line's, then the network's."""
    env = image.env | machine.image_env
    for name in run.many("--env-file"):
        for line in Path(name).read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                key, joined, value = line.partition("=")
                env[key] = value if joined else os.environ.get(key, "")
    for pair in run.many("-e", "--env"):
        key, joined, value = pair.partition("=")
        env[key] = value if joined else os.environ.get(key, "")
    env = {key: moved(value, places) for key, value in env.items()}
    for target, source in places.items():
        if target == "/run/spotproof":
            env.setdefault("SPOTPROOF_RUNTIME_DIR", str(source))
    return env | _surroundings(machine, run)


def _surroundings(machine: Machine, run: Run) -> dict[str, str]:
    """What on a real node would be the file system and the network, not the environment."""
    home = machine.container(run.one("--name"))
    reaches_metadata = run.one("--network", "--net", default="bridge") == "host" or machine.hop_limit > 1
    return {
        "PATH": f"{home / 'bin'}:{os.defpath}",
        "HOME": str(home / "root"),
        "TMPDIR": str(home / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(p for p in (machine.sabotage, str(machine.repository)) if p),
        "PYTHONDONTWRITEBYTECODE": "1",
        # An address where nobody answers: one network hop more than the metadata service allows.
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": machine.metadata if reaches_metadata else "http://127.0.0.1:1",
        # All nodes are on one machine: what on EC2 is the node's own interface is an address of its own on loopback.
        "SPOTPROOF_ADDRESS": machine.address,
        **machine.endpoints,
    }


def command(run: Run, image: dockerfile.Image, places: dict[str, Path]) -> list[str]:
    """The container's process: --entrypoint or the image's, then the arguments or, without any, the image's CMD."""
    override = run.one("--entrypoint")
    entrypoint = [override] if override else image.entrypoint
    argv = entrypoint + (run.argv or ([] if override else image.command))
    if not argv:
        raise Refused("No command specified")
    return [str(image.locate(word) or moved(word, places)) if word.startswith("/") else word for word in argv]


def prepare(machine: Machine, run: Run) -> dict[str, Any]:
    """Makes the container's folder and returns what its supervisor needs."""
    run.single.setdefault("--name", f"container-{uuid.uuid4().hex[:8]}")
    home = machine.container(run.one("--name"))
    if home.exists():
        raise Refused(f'Conflict. The container name "/{run.one("--name")}" is already in use')
    for part in ("bin", "root", "tmp", "work"):
        (home / part).mkdir(parents=True)
    image, places = machine.image(), mounts(machine, run)
    _tools(machine, home / "bin")
    workdir = run.one("-w", "--workdir", default=image.workdir)
    cwd = image.locate(workdir) or Path(moved(workdir, places))
    return {
        "name": run.one("--name"),
        "home": str(home),
        "cwd": str(cwd if cwd.is_dir() and workdir in (*image.copied, *places) else home / "work"),
        "argv": command(run, image, places),
        "env": environment(machine, run, image, places),
        "restart": run.one("--restart", default="no"),
        "log": str(machine.logs / f"{run.one('--name')}.log"),
        "links": {str(home / "work" / target): str(source) for target, source in _beside(image, workdir).items()},
    }


def _beside(image: dockerfile.Image, workdir: str) -> dict[str, Path]:
    """What was copied under the working directory, by its path in there."""
    prefix = workdir.rstrip("/") + "/"
    return {t.removeprefix(prefix): source for t, source in image.copied.items() if t.startswith(prefix)}


def _tools(machine: Machine, folder: Path) -> None:
    entry = "import sys; sys.argv[0] = 'spotproof'; from spotproof.cli.main import main; sys.exit(main())"
    scripts = dict.fromkeys(("python", "python3"), f'exec "{machine.python}" "$@"')
    scripts["spotproof"] = f'exec "{machine.python}" -c "{entry}" "$@"'
    scripts["torchrun"] = f'exec "{machine.python}" -m torch.distributed.run "$@"'
    scripts["tini"] = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)


def supervise(container: dict[str, Any]) -> int:
    """Runs the container's process until its restart policy lets it rest; returns the last exit status."""
    home = Path(container["home"])
    for link, source in container["links"].items():
        Path(link).parent.mkdir(parents=True, exist_ok=True)
        Path(link).symlink_to(source)
    policy, _, most = str(container["restart"]).partition(":")
    restarts = 0
    while True:
        with open(container["log"], "ab") as log:
            process = subprocess.Popen(
                container["argv"],
                env=container["env"],
                cwd=container["cwd"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        (home / "pid").write_text(str(process.pid))
        code = process.wait()
        code = 128 - code if code < 0 else code
        stopped = (home / "stopped").exists()
        again = not stopped and (policy in ("always", "unless-stopped") or (policy == "on-failure" and code != 0))
        if not again or (most and restarts >= int(most)):
            (home / "exit").write_text(str(code))
            return code
        restarts += 1
        time.sleep(RESTART_PAUSE_S * min(restarts, 10))


def run_container(machine: Machine, words: list[str]) -> int:
    run = read_run(words)
    container = prepare(machine, run)
    home = Path(container["home"])
    (home / "container.json").write_text(json.dumps(container))
    if not run.flags & {"-d", "--detach"}:
        return supervise(container)
    subprocess.Popen(
        [machine.python, "-m", "rehearsal.nodes.stubs.docker", "supervise", str(home / "container.json")],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(uuid.uuid4().hex * 2)
    return 0


def stop_containers(machine: Machine, names: list[str], *, patience_s: float) -> int:
    for name in names:
        home = machine.container(name)
        if not home.exists():
            raise Refused(f"No such container: {name}")
        (home / "stopped").touch()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((home / "pid").read_text()), signal.SIGTERM if patience_s else signal.SIGKILL)
        end = time.monotonic() + patience_s
        while patience_s and not (home / "exit").exists() and time.monotonic() < end:
            time.sleep(0.05)
        if not (home / "exit").exists():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((home / "pid").read_text()), signal.SIGKILL)
        print(name)
    return 0


def remove_containers(machine: Machine, names: list[str]) -> int:
    """`docker rm -f`: names that are not there are no error."""
    there = [name for name in names if machine.container(name).exists()]
    stop_containers(machine, there, patience_s=0)
    for name in there:
        shutil.rmtree(machine.container(name), ignore_errors=True)
    return 0


def wait_for(machine: Machine, names: list[str]) -> int:
    for name in names:
        ended = machine.container(name) / "exit"
        while not ended.exists():
            time.sleep(0.1)
        print(ended.read_text())
    return 0


def perform(machine: Machine, words: list[str]) -> int:
    verb, rest = words[0], words[1:]
    names = [word for word in rest if not word.startswith("-")]
    match verb:
        case "run":
            return run_container(machine, rest)
        case "supervise":
            return supervise(json.loads(Path(rest[0]).read_text()))
        case "login":
            sys.stdin.read()
            print("Login Succeeded")
            return 0
        case "pull" | "info" | "version" | "system":
            return 0
        case "stop":
            return stop_containers(machine, names, patience_s=10)
        case "kill":
            return stop_containers(machine, names, patience_s=0)
        case "rm":
            return remove_containers(machine, names)
        case "wait":
            return wait_for(machine, names)
        case "logs":
            print((machine.logs / f"{names[-1]}.log").read_text())
            return 0
        case _:
            raise Refused(f"`docker {verb}` is not played")


def main(argv: list[str]) -> int:
    machine = Machine(json.loads(Path(os.environ["REHEARSAL_HOST_FILE"]).read_text()))
    try:
        return perform(machine, argv)
    except Refused as error:
        print(f"docker: {error}", file=sys.stderr)
        return 64 if "not played" in str(error) else 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
