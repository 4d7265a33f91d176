"""Our one SSM document: it drops a flush request on the nodes and can do nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from aws_cdk import aws_ssm as ssm
from constructs import Construct

from spotproof.contract import orders

FIRST_VERSION: Final = "1"


class FlushDocument(Construct):
    """Version 1 of a document whose logical id carries the digest of its content: another content is another document,
    so the version that functions send never changes under a running recovery, and nobody's later version is ever run.
    """

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        content = orders.document()
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
        document = ssm.CfnDocument(
            self,
            f"Flush{digest}",
            content=content,
            document_type="Command",
            document_format="JSON",
            target_type="/AWS::EC2::Instance",
            update_method="NewVersion",  # the default would delete the document and make it again when a tag changes
        )
        self.name = document.ref
        self.version = FIRST_VERSION
