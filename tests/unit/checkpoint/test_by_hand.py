"""The page's commands, run as they stand there: a checkpoint is recovered without anything of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load

from spotproof.contract import s3keys
from tests.fakes.checkpoints import RUN, Rig
from tests.fakes.training import Training, same_bits
from tests.unit.checkpoint.test_pull import commit

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:torch.distributed:UserWarning")]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "checkpoints.md"
AWS = '''#!{python}
"""`aws s3 ls --recursive` and `aws s3 cp`, of a bucket that is a folder."""
import pathlib, shutil, sys

root = pathlib.Path({root!r})
service, verb, place = sys.argv[1:4]
bucket, _, key = place.removeprefix("s3://").partition("/")
assert (service, bucket) == ("s3", "the-bucket"), sys.argv
if verb == "ls":
    assert sys.argv[4:] == ["--recursive"]
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and name.startswith(key):
            print("2026-01-01 00:00:00", path.stat().st_size, name)
else:
    assert verb == "cp", sys.argv
    shutil.copyfile(root / key, sys.argv[4])
'''


def test_the_page_recovers_a_checkpoint_with_the_aws_cli_and_stock_torch(rig: Rig, tmp_path: Path) -> None:
    training = Training()
    for step in (1, 2):
        training.step()
        commit(rig, training.objects, step=step)
    stub = tmp_path / "bin" / "aws"
    stub.parent.mkdir()
    stub.write_text(AWS.format(python=sys.executable, root=str(rig.folder / "bucket")))
    stub.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    script = re.search(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert script is not None
    at = s3keys.manifest(RUN, 1, 2).split("/")[-2]
    environ = {"PATH": f"{stub.parent}:/usr/local/bin:/usr/bin:/bin", "BUCKET": "the-bucket", "RUN": RUN, "AT": at}
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script[1]],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert at in done.stdout
    wanted = training.model.state_dict()
    found: dict[str, Any] = {"model": {name: torch.zeros_like(value) for name, value in wanted.items()}}
    load(found, checkpoint_id=work / "checkpoint")
    assert [name for name, value in wanted.items() if not same_bits(found["model"][name], value)] == []
