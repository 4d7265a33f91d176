"""A function's deployed code: fetched from the asset bucket, checked against CodeSha256, unpacked once."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import sysconfig
import threading
import zipfile
from pathlib import Path
from typing import Any

from rehearsal.plane.account import Account
from rehearsal.plane.failures import EmulationGap

# What the managed Python runtime carries beside the standard library.
RUNTIME_PACKAGES = ("boto3", "botocore", "s3transfer", "jmespath", "urllib3", "dateutil", "six.py")


class CodeStore:
    """Unpacked zips by their hash, and the runtime's own packages."""

    def __init__(self, account: Account, folder: Path) -> None:
        self._account = account
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self.runtime_site = self._link_runtime(folder / "runtime")

    def _link_runtime(self, site: Path) -> Path:
        packages = Path(sysconfig.get_paths()["purelib"])
        site.mkdir(exist_ok=True)
        for name in RUNTIME_PACKAGES:
            link = site / name
            if not link.exists():
                link.symlink_to(packages / name)
        return site

    def unpacked(self, function: Any) -> Path:
        """The folder of `function`'s code. Raises EmulationGap when the stored zip is not the one that was deployed."""
        content = self._content(function)
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        if digest != function.code_sha_256:
            raise EmulationGap(
                f"function {function.function_name}: the zip in the asset bucket has SHA-256 {digest}, "
                f"CodeSha256 says {function.code_sha_256}"
            )
        target = self._folder / hashlib.sha256(content).hexdigest()[:16]
        with self._lock:  # the functions of a stack share one zip, and start at once after an upgrade
            if not target.exists():
                aside = target.with_suffix(".new")
                shutil.rmtree(aside, ignore_errors=True)
                zipfile.ZipFile(io.BytesIO(content)).extractall(aside)
                aside.rename(target)
        return target

    def _content(self, function: Any) -> bytes:
        code = function.code
        with self._account.lock:
            if "S3Bucket" not in code:
                return bytes(function.code_bytes)
            stored = self._account.buckets.get_object(code["S3Bucket"], code["S3Key"])
            if stored is None:
                where = f"s3://{code['S3Bucket']}/{code['S3Key']}"
                raise EmulationGap(f"function {function.function_name}: its code is not at {where}")
            return bytes(stored.value)
