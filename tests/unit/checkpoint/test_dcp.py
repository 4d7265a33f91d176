from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load

from spotproof.checkpoint.dcp import FRAME_ALIGN, ImagePlan, payload_views, plan_image, write_frames
from spotproof.contract.layout import STATE_KEY, Layout, TensorEntry
from spotproof.errors import BadManifest
from tests.fakes.training import Net, same_bits

pytestmark = pytest.mark.torch

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip


def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Any bits at all, as long as they are a value of this type (a bool is 0 or 1)."""
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def all_kinds() -> dict[str, Tensor]:
    tensors = {f"model.t{index}": random((3, 5), dtype) for index, dtype in enumerate(DTYPES)}
    tensors |= {f"box.scalar{index}": random((), dtype) for index, dtype in enumerate(DTYPES)}
    return tensors | {
        "box.empty": torch.empty(0, 4),
        "box.transposed": torch.rand(3, 4).t(),
        "box.expanded": torch.rand(3, 1).expand(3, 4),
        "box.view": torch.rand(100_000)[:10],
        "box.large": torch.rand(300, 400),
    }


def materialise(folder: Path, plan: ImagePlan, tensors: dict[str, Tensor]) -> None:
    """A checkpoint folder as a restore by hand makes it: the image after payloads were written, and `.metadata`."""
    image = bytearray(plan.layout.image_bytes)
    write_frames(plan, memoryview(image))
    views = payload_views(plan.layout, image)
    for key, tensor in tensors.items():
        views[key].copy_(tensor)
    (folder / "__0_0.distcp").write_bytes(image)
    (folder / ".metadata").write_bytes(plan.metadata)


def stock_load(folder: Path, into: dict[str, Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "torch.distributed is uninitialized", which is true
        load(into, checkpoint_id=folder, no_dist=True)


def test_stock_dcp_loads_every_kind_of_tensor_bit_by_bit(tmp_path: Path) -> None:
    tensors = all_kinds()
    plan = plan_image(tensors, {}, state_capacity=1000)
    materialise(tmp_path, plan, tensors)
    loaded = {key: torch.zeros(tensor.shape, dtype=tensor.dtype) for key, tensor in tensors.items()}
    stock_load(tmp_path, loaded)
    assert [key for key in tensors if not same_bits(tensors[key], loaded[key])] == []


def test_stock_dcp_finds_a_tied_tensor_under_each_name(tmp_path: Path) -> None:
    tensors = {"model.embed.weight": torch.rand(4, 3)}
    plan = plan_image(tensors, {"model.head.weight": "model.embed.weight"}, state_capacity=1000)
    materialise(tmp_path, plan, tensors)
    loaded = {"model.head.weight": torch.zeros(4, 3), "model.embed.weight": torch.zeros(4, 3)}
    stock_load(tmp_path, loaded)
    assert torch.equal(loaded["model.head.weight"], tensors["model.embed.weight"])
    assert torch.equal(loaded["model.embed.weight"], tensors["model.embed.weight"])


def test_stock_tools_rebuild_a_dict_per_tracked_object(tmp_path: Path) -> None:
    net = Net()
    tensors = {f"model.{key}": value for key, value in net.state_dict().items() if key != "head.weight"}
    plan = plan_image(tensors, {"model.head.weight": "model.embed.weight"}, state_capacity=1000)
    materialise(tmp_path, plan, tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp_to_torch_save(tmp_path, tmp_path / "whole.pt")
    other = Net()
    other.load_state_dict(torch.load(tmp_path / "whole.pt", weights_only=True)["model"])
    assert torch.equal(other.embed.weight, net.embed.weight)


@pytest.mark.parametrize("tensor", all_kinds().values(), ids=all_kinds().keys())
def test_a_frame_is_what_torch_save_writes(tensor: Tensor) -> None:
    """Same length and a loadable file; only the zip's CRC and the id made from it differ."""
    whole = tensor.clone(memory_format=torch.contiguous_format)
    plan = plan_image({"model.x": tensor}, {}, state_capacity=8)
    image = bytearray(plan.layout.image_bytes)
    write_frames(plan, memoryview(image))
    payload_views(plan.layout, image)["model.x"].copy_(tensor)
    frame = plan.frames[0]
    stock = io.BytesIO()
    torch.save(whole, stock)
    ours = bytes(image[frame.offset : frame.end])
    assert len(ours) == len(stock.getvalue())
    assert same_bits(torch.load(io.BytesIO(ours), weights_only=True), whole)


def test_payloads_are_aligned_and_do_not_overlap() -> None:
    plan = plan_image(all_kinds(), {}, state_capacity=1000)
    end = 0
    for frame in plan.frames:
        assert frame.entry.offset % FRAME_ALIGN == 0 or frame.entry.bytes == 0
        assert frame.offset >= end
        end = frame.end
    assert end == plan.layout.image_bytes


def test_a_plan_is_the_same_for_the_same_tensors() -> None:
    tensors = {"model.a": torch.rand(3), "optimizer.b": torch.rand(4)}
    one, other = (plan_image(tensors, {}, state_capacity=100) for _ in range(2))
    assert one == other


def test_planning_a_huge_tensor_touches_none_of_its_memory() -> None:
    huge = torch.empty(2**36, dtype=torch.uint8, device="meta")  # 64 GiB
    plan = plan_image({"model.huge": huge}, {}, state_capacity=8)
    assert plan.layout.tensors[0].bytes == 2**36


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "message"),
    [("float32", (3,), 16, "16 bytes are not"), ("load", (3,), 12, "unknown dtype"), ("float31", (3,), 12, "dtype")],
)
def test_an_entry_that_cannot_be_is_refused(dtype: str, shape: tuple[int, ...], size: int, message: str) -> None:
    entry = TensorEntry(key="x", dtype=dtype, shape=shape, offset=0, bytes=size)
    with pytest.raises(BadManifest, match=message):
        payload_views(Layout(image_bytes=64, tensors=(entry,)), bytearray(64))


def test_an_image_that_is_shorter_than_its_layout_is_refused() -> None:
    with pytest.raises(BadManifest, match="has 10 bytes, its layout 64"):
        payload_views(Layout(image_bytes=64, tensors=()), bytearray(10))


def test_the_state_document_is_the_last_tensor_of_the_image() -> None:
    assert plan_image({"model.x": torch.rand(1)}, {}, state_capacity=8).layout.tensors[-1].key == STATE_KEY
