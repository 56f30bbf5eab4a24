"""Typed views of tags: written as specified, read back, and lenient with tags of other nodes."""

from hypothesis import given
from hypothesis import strategies as st

from meshbus.policy.capability import CapabilitySet
from meshbus.policy.views import GPU_TAG, Gpu, GpuVendor, Hardware, Modality, Model, Tool, write_all

numbers = st.integers(0, 2**64 - 1)
texts = st.text("abc0-_.:= ", max_size=6)
words = st.lists(st.text("abc", min_size=1, max_size=3), max_size=3).map(tuple)
hardware = st.builds(
    Hardware, cpu_cores=numbers, cpu_threads=numbers, memory_gb=numbers, storage_gb=numbers, network_gbps=numbers
)
gpus = st.builds(
    Gpu, vendor=st.sampled_from(GpuVendor), model=texts, vram_gb=numbers, compute_units=numbers, tensor_cores=numbers,
    fp16_tflops_x10=numbers,
)  # fmt: skip
models = st.builds(
    Model, id=texts.filter(bool), family=texts, parameters_b_x10=numbers, context_length=numbers, quantization=texts,
    modalities=st.lists(st.sampled_from(Modality), max_size=3).map(tuple), tokens_per_sec=numbers, loaded=st.booleans(),
)  # fmt: skip
tools = st.builds(
    Tool, tool_id=texts.filter(bool), name=texts, version=texts.filter(bool), requires=words,
    estimated_time_ms=numbers, stateless=st.booleans(),
)  # fmt: skip


@given(hardware, gpus, st.lists(models, max_size=12).map(tuple), st.lists(tools, max_size=12).map(tuple))
def test_views_round_trip_through_tags(
    machine: Hardware, gpu: Gpu, listed: tuple[Model, ...], offered: tuple[Tool, ...]
) -> None:
    tags = [*machine.write(), *gpu.write(), *write_all(listed), *write_all(offered)]
    capabilities = CapabilitySet(tags)
    assert capabilities.hardware == machine
    assert capabilities.gpu == gpu
    assert capabilities.models == listed
    assert capabilities.tools == offered


def test_what_is_zero_or_empty_is_not_written() -> None:
    assert list(Hardware().write()) == []
    assert list(Hardware(memory_gb=64).write()) == ["hardware.memory_gb=64"]
    assert list(Gpu().write()) == [GPU_TAG]
    assert list(write_all((Model(id="llama"),))) == ["software.model.0.id=llama"]


def test_the_full_encodings() -> None:
    gpu = Gpu(
        vendor=GpuVendor.NVIDIA, model="h100", vram_gb=80, compute_units=132, tensor_cores=528, fp16_tflops_x10=9890
    )
    assert list(gpu.write()) == [
        "hardware.gpu",
        "hardware.gpu.vendor=nvidia",
        "hardware.gpu.model=h100",
        "hardware.gpu.vram_gb=80",
        "hardware.gpu.compute_units=132",
        "hardware.gpu.tensor_cores=528",
        "hardware.gpu.fp16_tflops_x10=9890",
    ]
    model = Model(id="llama", modalities=(Modality.TEXT, Modality.CODE), loaded=True)
    assert list(write_all((Model(id="a"), model)))[1:] == [
        "software.model.1.id=llama",
        "software.model.1.modalities=text,code",
        "software.model.1.loaded=true",
    ]
    tool = Tool(tool_id="py", requires=("a", "b"))
    assert list(write_all((tool, Tool(tool_id="sh", stateless=True)))) == [
        "software.tool.0.tool_id=py",
        "software.tool.0.version=1.0.0",
        "software.tool.0.requires=a,b",
        "software.tool.0.stateless=false",
        "software.tool.1.tool_id=sh",
        "software.tool.1.version=1.0.0",
        "software.tool.1.stateless=true",
    ]


def test_bad_numbers_are_zero() -> None:
    for text in ("", "x", "-1", "1.5", " 1", "٣", "18446744073709551616", "9" * 5000):
        assert CapabilitySet([f"hardware.memory_gb={text}"]).hardware.memory_gb == 0
    assert CapabilitySet(["hardware.memory_gb=+064"]).hardware.memory_gb == 64
    assert CapabilitySet(["hardware.memory_gb:64"]).hardware.memory_gb == 64


def test_unknown_words_have_a_place() -> None:
    capabilities = CapabilitySet(
        ["hardware.gpu.vendor=acme", "software.model.0.modalities=smell,audio,", "software.model.0.loaded=yes"]
    )
    assert capabilities.gpu == Gpu(vendor=GpuVendor.UNKNOWN)
    assert capabilities.models == (Model(modalities=(Modality.TEXT, Modality.AUDIO)),)


def test_any_tag_about_a_gpu_makes_one() -> None:
    assert CapabilitySet([GPU_TAG]).gpu == Gpu()
    assert CapabilitySet(["hardware.gpu.fans=3"]).gpu == Gpu()
    assert CapabilitySet(["hardware.memory_gb=1", "hardware.gpus"]).gpu is None


def test_models_come_by_index_and_strange_indexes_are_ignored() -> None:
    tags = [
        f"software.model.{index}.id={name}" for index, name in [("10", "b"), ("9", "a"), ("x", "c"), ("9" * 5000, "d")]
    ]
    models = CapabilitySet([*tags, "software.model.id=e", "software.model.9=f"]).models
    assert [model.id for model in models] == ["a", "b"]


def test_of_two_claims_the_later_in_byte_order_wins() -> None:
    assert CapabilitySet(["hardware.memory_gb=64", "hardware.memory_gb=32"]).hardware.memory_gb == 64


def test_a_view_owns_the_keys_it_writes() -> None:
    views = [Hardware(memory_gb=1), Gpu(vram_gb=1)]
    for view in views:
        assert all(type(view).owns(tag.partition("=")[0]) for tag in view.write())
    assert all(Tool.owns(tag.partition("=")[0]) for tag in write_all((Tool(tool_id="py"),)))
    assert Gpu.owns("hardware.gpu.fans")
    assert not Gpu.owns("hardware.gpus")
    assert not Hardware.owns("hardware.gpu.vram_gb")
    assert not Hardware.owns("software.memory_gb")
    assert not Model.owns("software.tool.0.tool_id")
