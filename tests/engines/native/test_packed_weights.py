"""Products with packed weights against float64 arithmetic, and int8 weights against transformers with the same ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch

from tests.engines.native.compiled import need_compiled_kernels
from tests.engines.native.drive import forced_logits, greedy, make_engine
from tests.engines.native.reference import Reference, Tally
from visavis.engine.kernels.cpu.arena import Arena
from visavis.engine.kernels.cpu.library import Workers, library
from visavis.engine.kernels.cpu.packed import PANEL, PackedWeight, padded

pytestmark = pytest.mark.engines

need_compiled_kernels()


def test_panels_are_as_wide_here_as_in_the_library() -> None:
    assert library().visavis_panel() == PANEL


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (31, 7), (32, 64), (33, 1176), (200, 96), (77, 4100)])
def test_products_equal_float64_arithmetic(n: int, k: int, storage: str, threads: int) -> None:
    """Whole and broken panels, and more vectors and columns than a tile or a block takes."""
    generator = torch.Generator().manual_seed(n * k)
    rows = torch.randn(n, k, generator=generator) / k**0.5
    bias = torch.randn(n, generator=generator)
    arena, workers = Arena(), Workers(threads, 1)
    if storage == "int8":
        packed = PackedWeight.quantise(rows, bias, arena.empty)
        step = rows.abs().amax(1, keepdim=True) / 127
        rows = (rows / step).round() * step
    elif storage == "bfloat16":
        rows = rows.bfloat16()
        packed = PackedWeight.pack(rows, bias, arena.empty)
    else:
        whole = arena.empty((padded(n), k), torch.float32)[:n].copy_(rows)
        packed = PackedWeight.pack_in_place(whole, bias)
    for count in (0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 25, 97, 200):
        x = torch.randn(count, 2 * k, generator=generator)[:, :k]  # rows lie apart
        # Several vectors are rounded where the processor has products of bfloat16, as bfloat16 products are elsewhere.
        rounded = library().visavis_rounds(packed.struct.dtype, count)
        expected = (x.bfloat16() if rounded else x).double() @ rows.double().T + bias.double()
        got = packed.product(x, torch.empty(count, n), workers, add=False)
        torch.testing.assert_close(got.double(), expected, atol=2e-5, rtol=1e-5)
        base = torch.randn(count, n, generator=generator)
        added = packed.product(x, base.clone(), workers, add=True)
        torch.testing.assert_close(added.double(), expected + base, atol=2e-5, rtol=1e-5)
    ids = torch.randint(n, (9,), generator=generator)
    torch.testing.assert_close(packed.rows(ids), rows.float()[ids], atol=1e-6, rtol=1e-6)
    workers.close()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_int8_products_of_few_vectors(count: int) -> None:
    """Vectors with a number that towers above the rest, tiny ones and zeros, in more columns than have one step."""
    generator = torch.Generator().manual_seed(5)
    n, k = 64, 2500
    rows = torch.randint(-127, 128, (n, k), generator=generator).float()
    rows[:, 0] = 127  # so that the scale is 1
    packed = PackedWeight.quantise(rows, None, Arena().empty)
    workers = Workers(2, 1)
    for scale in (1.0, 1e-30, 1e30):
        x = torch.randn(count, k, generator=generator) * scale
        x[0, 700] = 1000 * scale
        x[-1, 1024:2048] = 0
        got = packed.product(x, torch.empty(count, n), workers, add=False).double()
        expected = x.double() @ rows.double().T
        size = x.double().abs() @ rows.double().abs().T
        assert ((got - expected).abs() <= 2e-6 * size).all()
        if count <= 3:  # where in fixed point: half a step of 2^-28 of the largest, for every column
            largest = x.double().abs().amax(1, keepdim=True)
            assert ((got - expected).abs() <= 2**-29 * largest * rows.abs().sum(1).double() + 3e-7 * size).all()
    for broken in (math.nan, math.inf, -math.inf):
        x = torch.randn(count, k, generator=generator)
        x[-1, 2200] = broken
        got = packed.product(x, torch.empty(count, n), workers, add=False)
        assert not got[-1].isfinite().any()
        assert got[:-1].isfinite().all()
    workers.close()


def test_a_row_of_zeros_is_quantised_to_zeros() -> None:
    rows = torch.zeros(3, 32)
    rows[1] = torch.linspace(-1, 1, 32)
    packed = PackedWeight.quantise(rows, None, Arena().empty)
    got = packed.rows(torch.arange(3))
    assert torch.equal(got[[0, 2]], torch.zeros(2, 32))
    assert (got[1] - rows[1]).abs().max() <= 0.5 / 127 + 1e-7  # half a step of the row's own scale


def _rounded(reference: Reference) -> Reference:
    """The reference with the decoder's matrices, embedding and head as their int8 values say."""
    rounded = copy.copy(reference)
    rounded.model = copy.deepcopy(reference.model)
    done = set()
    for name, weight in rounded.model.named_parameters():
        if weight.dim() == 2 and "visual" not in name and weight.data_ptr() not in done:
            step = weight.data.abs().amax(1, keepdim=True) / 127
            weight.data = (weight.data / step).round() * step
            done.add(weight.data_ptr())
    return rounded


@pytest.mark.parametrize(("family", "tied"), [("qwen2", True), ("qwen3", False), ("qwen2_vl", False)])
def test_int8_answers_equal_transformers_with_the_rounded_weights(
    reference: Callable[..., Reference], count: Callable[..., None], family: str, tied: bool
) -> None:
    """So int8 changes the weights as stated and nothing else: alone, together, and in chunks among decodes."""
    rounded = _rounded(reference(family, tied=tied))
    parts: list[list[object]] = [[40], [3], [100]]
    if rounded.vision:
        parts.append([5, ("image", (1, 4, 6)), 9])
    prompts = [rounded.prompt(part, seed) for seed, part in enumerate(parts)]  # type: ignore[arg-type]
    answers = [rounded.answer(prompt) for prompt in prompts]
    tally = Tally()
    for settings in ({}, {"max_num_batched_tokens": 13, "max_num_seqs": 5}):
        engine = make_engine(rounded, device="cpu", dtype="float32", quantization="int8", **settings)
        for ours, answer in zip(greedy(engine, prompts), answers, strict=True):
            tally.check(f"{family} {settings}", ours, answer)
        engine.close()
    engine = make_engine(rounded, device="cpu", dtype="float32", quantization="int8")
    for ours, answer in zip(forced_logits(engine, prompts, answers), answers, strict=True):
        torch.testing.assert_close(ours, answer.logits, atol=1e-4, rtol=0)
    engine.close()
    count(tally)


def test_bfloat16_weights_err_no_more_than_transformers(reference: Callable[..., Reference]) -> None:
    """DESIGN's law for bfloat16: the error of the logits against float32 is no worse than transformers' own."""
    ref = reference("qwen2", tied=False)
    prompts = [ref.prompt([30 + 20 * i], i) for i in range(4)]
    answers = [ref.answer(prompt) for prompt in prompts]
    half = copy.deepcopy(ref.model).bfloat16()
    engine = make_engine(ref, device="cpu", dtype="bfloat16")
    ours = forced_logits(engine, prompts, answers)
    engine.close()
    mine, theirs = 0.0, 0.0
    for prompt, answer, logits in zip(prompts, answers, ours, strict=True):
        ids = torch.tensor([[*prompt.token_ids, *answer.token_ids[:-1]]])
        with torch.inference_mode():
            reference_logits = half(ids).logits[0, len(prompt) - 1 :].float()
        mine += float((logits - answer.logits).square().mean())
        theirs += float((reference_logits - answer.logits).square().mean())
    assert 0 < mine <= theirs
