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


@pytest.fixture(scope="session")
def guest_assembly(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """A stack in an existing, isolated network, over the table and the bucket of an earlier one, with every option."""
    return assemble(
        tmp_path_factory,
        """
        name = "team-d"
        network = "endpoints"
        vpc_id = "vpc-0123456789abcdef0"
        subnets = ["subnet-0123456789abcdef0=us-east-1a", "subnet-0123456789abcdef1=us-east-1d"]
        route_tables = ["rtb-0123456789abcdef0", "rtb-0123456789abcdef1"]
        attach_table = "spotproof-StateTable962DE04C-1ABC"
        attach_bucket = "spotproof-statebucket77825682-1abc"
        drills = true
        create_spot_role = true
        """,
    )
