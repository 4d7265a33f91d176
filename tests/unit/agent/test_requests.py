"""Request files, dropped by the very script of the SSM document."""

from __future__ import annotations

import subprocess
from pathlib import Path

from spotproof.agent.requests import Requests
from spotproof.contract.orders import DOCUMENT_PARAMETER, FlushOrder, request_line, request_script
from spotproof.contract.states import NoticeKind

ORDER = FlushOrder(order="order-7", kind=NoticeKind.INTERRUPTION, deadline_at=1234, leavers=frozenset({0, 5}))


def drop(folder: Path, order: FlushOrder) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "SPOTPROOF_RUNTIME_DIR": str(folder),
        f"SSM_{DOCUMENT_PARAMETER}": request_line(order),
    }
    subprocess.run(["sh", "-c", "\n".join(request_script())], env=environment, check=True)


def test_a_dropped_order_is_read_once_and_is_gone(tmp_path: Path) -> None:
    requests = Requests(runtime_dir=tmp_path)
    requests.open()
    assert requests.poll() == []
    drop(tmp_path, ORDER)
    assert requests.poll() == [ORDER]
    assert requests.poll() == []
    assert Requests(runtime_dir=tmp_path).poll() == []


def test_an_order_that_came_before_the_agent_is_read(tmp_path: Path) -> None:
    drop(tmp_path, ORDER)
    requests = Requests(runtime_dir=tmp_path)
    requests.open()
    assert requests.poll() == [ORDER]


def test_what_is_no_order_is_named_and_what_is_half_written_is_left_alone(tmp_path: Path) -> None:
    requests = Requests(runtime_dir=tmp_path)
    requests.open()
    folder = tmp_path / "requests"
    (folder / ".new-order-1-99").write_text("order-1,interr")
    (folder / "flush-bad").write_bytes(b"\xff;rm -rf /")
    (folder / "flush-huge").write_text("x" * 10_000)
    assert requests.poll() == []
    assert len(requests.refused) == 2
    assert "flush-bad" in requests.refused[0]
    assert (folder / ".new-order-1-99").exists()


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert Requests(runtime_dir=tmp_path / "nowhere").poll() == []
