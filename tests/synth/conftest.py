"""Further syntheses, of other settings; `assembly`, the one of the session, stands in tests/conftest.py."""

from __future__ import annotations

import pytest

from tests.synth.synthesis import assemble
from tests.synth.template import Assembly


@pytest.fixture(scope="session")
def strict_assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """A stack with everything the other way round: isolated network, no credentials in containers, named zones."""
    return assemble(
        tmp_path_factory,
        """
        name = "team-b"
        network = "endpoints"
        zones = ["us-east-1a", "us-east-1d"]
        strict_metadata = true
        deletion_protection = false
        notify_email = "people@example.com"
        """,
    )


@pytest.fixture(scope="session")
def nat_assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """A stack behind NAT gateways whose nodes read a bucket of training data."""
    return assemble(
        tmp_path_factory,
        """
        name = "team-c"
        network = "nat"
        nat_gateways = 2
        data_buckets = ["corpus"]
        """,
    )
