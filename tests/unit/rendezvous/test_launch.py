"""torchrun reads what it is told by its environment, and the command line wins."""

from __future__ import annotations

import os

import pytest

from spotproof.contract.settings import RendezvousSettings
from spotproof.rendezvous.launch import torchrun_environment

PLACE = RendezvousSettings(table="t", region="us-east-1", instance="i-a", slot=1, incarnation=2)


def test_a_place_and_its_table_are_told_and_read_back() -> None:
    told = torchrun_environment(PLACE, run="r", smallest=2, largest=4)
    assert RendezvousSettings.from_env(told) == PLACE
    assert told["PET_NNODES"] == "2:4"


@pytest.mark.torch
def test_an_elastic_run_is_told_when_it_may_grow_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in torchrun_environment(PLACE, run="r", smallest=2, largest=4, regrow_s=7.5).items():
        monkeypatch.setenv(name, text)
    from torch.distributed.run import config_from_args, get_args_parser

    config, _, _ = config_from_args(get_args_parser().parse_args(["train.py"]))
    assert (config.min_nodes, config.max_nodes) == (2, 4)
    assert config.rdzv_configs["regrow"] == "7.5"


@pytest.mark.torch
def test_torchrun_takes_it_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in torchrun_environment(PLACE, run="r", smallest=3, largest=3).items():
        monkeypatch.setenv(name, text)
    from torch.distributed.run import config_from_args, get_args_parser

    args = get_args_parser().parse_args(["--max-restarts", "7", "train.py"])
    config, _, _ = config_from_args(args)
    assert (config.min_nodes, config.max_nodes, config.max_restarts) == (3, 3, 7)
    assert (config.rdzv_backend, config.run_id, config.shutdown_timeout) == ("spotproof", "r", 120)
    assert os.environ["SPOTPROOF_SLOT"] == "1"
