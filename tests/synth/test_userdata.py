"""The boot script, run: with programs on PATH that note how they were called and answer as the real ones do."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cdk_app import userdata
from spotproof.contract import orders
from spotproof.contract.settings import NodeSettings, TrainerSettings

INSTANCE = "i-0aaaaaaaaaaaaaaa1"
IMAGE = "111122223333.dkr.ecr.eu-west-1.amazonaws.com/train@sha256:" + "0" * 64
ELSEWHERE = "registry.example.com/train@sha256:" + "0" * 64
# Answers from files beside the programs: `<program>.<n>` is the exit status of the n-th call, the default is 0.
PROGRAM = """#!/bin/bash
here="$(dirname "$0")"; name="$(basename "$0")"
printf '%s' "$name" >> "$here/calls-$name"; printf ' %q' "$@" >> "$here/calls-$name"; echo >> "$here/calls-$name"
count=$(($(cat "$here/$name.count" 2>/dev/null || echo 0) + 1)); echo "$count" > "$here/$name.count"
if [[ -e "$here/$name.$count" ]]; then exit "$(cat "$here/$name.$count")"; fi
case "$name" in
  curl)
    for word in "$@"; do
      case "$word" in
        */latest/api/token) echo token ;;
        */latest/meta-data/*) cat "$here/imds/${word#*/latest/meta-data/}" 2>/dev/null || exit 22 ;;
      esac
    done ;;
  aws)
    case "$1 $2" in
      "dynamodb get-item") cat "$here/image" ;;
      "ecr get-login-password") echo password ;;
    esac ;;
  docker) [[ "$1" == login ]] && cat > "$here/password"; exit 0 ;;
  lsblk) cat "$here/disks" 2>/dev/null ;;
  mountpoint) [[ -e "$here/premounted" ]] ;;
  nvidia-smi) [[ -e "$here/gpu" ]] ;;
esac
"""
PROGRAMS = ("curl", "aws", "docker", "lsblk", "mountpoint", "mdadm", "mkfs.ext4", "mount", "nvidia-smi", "sleep")


@dataclass(kw_only=True)
class Host:
    """A machine that boots with the script."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    strict_metadata: bool = False

    @property
    def programs(self) -> Path:
        return self.root / "bin"

    def tag(self, key: str, value: str) -> None:
        (self.programs / "imds" / "tags" / "instance" / key).write_text(value)

    def boot(self) -> subprocess.CompletedProcess[str]:
        script = userdata.render(
            stack="team-b",
            table="the-table",
            bucket="the-bucket",
            region="us-east-1",
            log_group="the-group",
            strict_metadata=self.strict_metadata,
        )
        # Folders of a real machine, kept inside this test's own.
        for place in ("/var/lib/spotproof", "/opt/dlami/nvme", "/run/spotproof"):
            script = script.replace(place, f"{self.root}{place}")
        return subprocess.run(
            ["bash", "-c", script],
            env={"PATH": f"{self.programs}:{os.defpath}", **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, program: str) -> list[list[str]]:
        log = self.programs / f"calls-{program}"  # one each: a pipe runs two at once
        lines = log.read_text().splitlines() if log.exists() else []
        return [words[1:] for line in lines if (words := shlex.split(line))[0] == program]

    def variables(self, file: str) -> dict[str, str]:
        lines = (self.root / "run" / "spotproof" / file).read_text().splitlines()
        return dict(line.partition("=")[::2] for line in lines)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A launched instance of run mini-gpt whose image is in ECR."""
    made = Host(root=tmp_path)
    (made.programs / "imds" / "tags" / "instance").mkdir(parents=True)
    for name in PROGRAMS:
        (made.programs / name).write_text(PROGRAM)
        (made.programs / name).chmod(0o755)
    (made.programs / "imds" / "instance-id").write_text(INSTANCE)
    (made.programs / "image").write_text(IMAGE)
    made.tag("spotproof:run", "mini-gpt")
    made.tag("spotproof:launch", "7")
    return made


def option(call: list[str], name: str) -> str:
    return next(word.partition("=")[2] for word in call if word.startswith(f"{name}="))


def containers(host: Host) -> dict[str, list[str]]:
    return {option(call, "--name"): call for call in host.calls("docker") if call[0] == "run"}


def test_agent_then_trainer_start_from_the_runs_image(host: Host) -> None:
    done = host.boot()
    assert done.returncode == 0, done.stderr
    started = containers(host)
    assert list(started) == [userdata.AGENT_CONTAINER, userdata.TRAINER_CONTAINER]
    agent, trainer = started.values()
    assert agent[-3:] == ["--entrypoint=spotproof", IMAGE, "agent"]
    assert trainer[-1] == IMAGE  # its own entrypoint is `spotproof run`; the command comes from the spec
    assert option(agent, "--restart") == "on-failure"
    assert not [word for word in trainer if word.startswith("--restart")]


def test_both_containers_share_the_runtime_folder_and_the_scratch(host: Host) -> None:
    host.boot()
    runtime, scratch = f"{host.root}{orders.RUNTIME_DIR}", f"{host.root}/var/lib/spotproof"
    for call in containers(host).values():
        assert [call[i + 1] for i, word in enumerate(call) if word == "-v"] == [
            f"{runtime}:{runtime}",
            f"{scratch}:{scratch}",
        ]
    assert Path(runtime, orders.REQUESTS).is_dir()
    assert Path(scratch).is_dir()


def test_the_agents_environment_is_its_settings_class(host: Host) -> None:
    host.boot()
    settings = NodeSettings.from_env(host.variables("agent.env"))
    assert settings == NodeSettings(
        stack="team-b",
        run="mini-gpt",
        table="the-table",
        bucket="the-bucket",
        region="us-east-1",
        instance=INSTANCE,
        launch="7",
        runtime_dir=f"{host.root}/run/spotproof",
        scratch_dir=f"{host.root}/var/lib/spotproof",
    )
    trainer = TrainerSettings.from_env(host.variables("trainer.env"))
    assert trainer == TrainerSettings(runtime_dir=settings.runtime_dir, run="mini-gpt")


def test_the_image_is_read_from_the_runs_spec(host: Host) -> None:
    host.boot()
    (call,) = [call for call in host.calls("aws") if call[0] == "dynamodb"]
    assert call[call.index("--key") + 1] == '{"pk": {"S": "RUN#mini-gpt"}, "sk": {"S": "SPEC"}}'
    assert call[call.index("--table-name") + 1] == "the-table"
    assert call[call.index("--query") + 1] == "Item.image.S"
    assert "--consistent-read" in call


def test_every_question_to_the_metadata_service_is_bounded_and_past_any_proxy(host: Host) -> None:
    host.boot()
    calls = host.calls("curl")
    assert len(calls) == 4
    for call in calls:
        assert call[call.index("--noproxy") + 1] == "*"
        assert int(call[call.index("--max-time") + 1]) <= 5
        assert call[-1].startswith("http://169.254.169.254/latest/")


def test_without_the_run_tag_nothing_starts_and_the_log_says_why(host: Host) -> None:
    (host.programs / "imds" / "tags" / "instance" / "spotproof:run").unlink()
    done = host.boot()
    assert done.returncode == 1
    assert "no readable tag spotproof:run" in done.stderr
    assert "spotproof submit" in done.stderr
    assert not host.calls("docker")
    assert not host.calls("aws")


def test_a_tag_that_is_no_run_id_is_not_used(host: Host) -> None:
    host.tag("spotproof:run", 'x"}, "sk": {"S": "$(reboot)')
    done = host.boot()
    assert done.returncode == 1
    assert "not a run id" in done.stderr
    assert not host.calls("aws")


def test_without_a_token_the_log_names_the_metadata_service(host: Host) -> None:
    (host.programs / "curl.1").write_text("28")
    done = host.boot()
    assert done.returncode == 1
    assert "IMDSv2" in done.stderr


@pytest.mark.parametrize("answer", ["None", ""], ids=["no item", "nothing"])
def test_a_run_without_a_spec_is_named(host: Host, answer: str) -> None:
    (host.programs / "image").write_text(answer)
    done = host.boot()
    assert done.returncode == 1
    assert "the-table has no spec of run 'mini-gpt'" in done.stderr
    assert not host.calls("docker")


def test_credentials_that_come_late_are_waited_for(host: Host) -> None:
    for call in (1, 2, 3):
        (host.programs / f"aws.{call}").write_text("253")
    done = host.boot()
    assert done.returncode == 0, done.stderr
    assert len(host.calls("sleep")) == 3


def test_the_login_is_to_the_images_registry_in_its_region(host: Host) -> None:
    host.boot()
    (password,) = [call for call in host.calls("aws") if call[0] == "ecr"]
    assert password == ["ecr", "get-login-password", "--region", "eu-west-1"]
    (login,) = [call for call in host.calls("docker") if call[0] == "login"]
    assert login[-1] == IMAGE.partition("/")[0]
    assert (host.programs / "password").read_text() == "password\n"
    assert "password" not in login


def test_another_registry_gets_no_login(host: Host) -> None:
    (host.programs / "image").write_text(ELSEWHERE)
    done = host.boot()
    assert done.returncode == 0, done.stderr
    assert not [call for call in host.calls("docker") if call[0] == "login"]


def test_a_container_that_does_not_start_is_named(host: Host) -> None:
    (host.programs / "image").write_text(ELSEWHERE)
    (host.programs / "docker.2").write_text("125")
    done = host.boot()
    assert done.returncode == 1
    assert "the trainer's container does not start" in done.stderr


def test_only_the_trainer_gets_the_gpus_and_only_where_there_are_some(host: Host) -> None:
    host.boot()
    assert not [call for call in containers(host).values() if "--gpus=all" in call]
    (host.programs / "gpu").touch()
    (host.programs / "calls-docker").unlink()
    host.boot()
    agent, trainer = containers(host).values()
    assert "--gpus=all" in trainer
    assert "--gpus=all" not in agent


def test_with_strict_metadata_the_trainer_has_a_network_of_its_own(host: Host) -> None:
    host.strict_metadata = True
    host.boot()
    agent, trainer = containers(host).values()
    assert option(agent, "--network") == "host"
    assert option(trainer, "--network") == "bridge"


def test_a_hand_tagged_instance_has_no_launch(host: Host) -> None:
    (host.programs / "imds" / "tags" / "instance" / "spotproof:launch").unlink()
    done = host.boot()
    assert done.returncode == 0, done.stderr
    assert NodeSettings.from_env(host.variables("agent.env")).launch == ""


def test_one_local_disk_is_formatted_and_mounted_as_scratch(host: Host) -> None:
    (host.programs / "disks").write_text(
        "/dev/nvme0n1 Amazon Elastic Block Store\n/dev/nvme1n1 Amazon EC2 NVMe Instance Storage\n"
    )
    host.boot()
    assert host.calls("mkfs.ext4")[0][-1] == "/dev/nvme1n1"
    assert host.calls("mount")[0][-2:] == ["/dev/nvme1n1", f"{host.root}/var/lib/spotproof"]
    assert not host.calls("mdadm")


def test_several_local_disks_become_one(host: Host) -> None:
    disks = ["/dev/nvme1n1", "/dev/nvme2n1"]
    (host.programs / "disks").write_text("".join(f"{one} Amazon EC2 NVMe Instance Storage\n" for one in disks))
    host.boot()
    assert host.calls("mdadm")[0][-2:] == disks
    assert host.calls("mkfs.ext4")[0][-1] == "/dev/md/spotproof"


def test_disks_that_the_image_has_mounted_are_used_as_they_are(host: Host) -> None:
    (host.programs / "premounted").touch()
    host.boot()
    assert not host.calls("mkfs.ext4")
    scratch = f"{host.root}/opt/dlami/nvme/spotproof"
    assert NodeSettings.from_env(host.variables("agent.env")).scratch_dir == scratch
    assert Path(scratch).is_dir()


def test_disks_that_cannot_be_mounted_leave_the_root_disk_and_a_word_in_the_log(host: Host) -> None:
    (host.programs / "disks").write_text("/dev/nvme1n1 Amazon EC2 NVMe Instance Storage\n")
    (host.programs / "mount.1").write_text("32")
    done = host.boot()
    assert done.returncode == 0, done.stderr
    assert "staged on the root disk" in done.stderr
    assert list(containers(host)) == [userdata.AGENT_CONTAINER, userdata.TRAINER_CONTAINER]


def test_folders_and_metadata_service_can_be_set_from_outside(host: Host) -> None:
    host.environment = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1338",
        "SPOTPROOF_RUNTIME_DIR": str(host.root / "elsewhere" / "run"),
        "SPOTPROOF_SCRATCH_DIR": str(host.root / "elsewhere" / "scratch"),
    }
    (host.programs / "disks").write_text("/dev/nvme1n1 Amazon EC2 NVMe Instance Storage\n")
    done = host.boot()
    assert done.returncode == 0, done.stderr
    assert all(call[-1].startswith("http://127.0.0.1:1338/latest/") for call in host.calls("curl"))
    assert (host.root / "elsewhere" / "run" / "agent.env").exists()
    assert not host.calls("mkfs.ext4")


def test_the_script_fits_and_every_word_of_it_is_filled_in() -> None:
    script = userdata.render(stack="s", table="t", bucket="b", region="r", log_group="g", strict_metadata=False)
    assert len(script.encode()) < 8 * 1024  # EC2 takes 16 KB, and names of real resources are longer
    assert script.startswith("#!/bin/bash\nset -euo pipefail\n")
    assert not userdata._WORD.findall(script)


def test_a_word_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="unknown_word"):
        userdata.fill("echo @unknown_word@", {})
