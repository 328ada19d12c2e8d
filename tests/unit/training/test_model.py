"""The training model: blocks do not see each other, and transformers computes the same from the exported folder."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")  # the imports below need it
pytest.importorskip("safetensors")

from training import tokenizer as bpe  # noqa: E402
from training.config import AFTER_IMAGE, ASSETS, HEAD, HELPERS, SHAPE, TURN  # noqa: E402
from training.losses import SKIP, Helpers, _classes  # noqa: E402
from training.model import Model  # noqa: E402
from training.optim import orthogonalise, rate  # noqa: E402
from training.vision import patchify  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Model:
    from training.reading import load

    return load(ASSETS)


def run(model: Model, image: torch.Tensor, texts: list[str]) -> list[torch.Tensor]:
    """Logits (L, vocab) of each text as a block after the image."""
    vocab = bpe.load()
    rows = [vocab.encode(t + TURN).ids for t in texts]
    ids = torch.zeros(1, len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[0, i, : len(row)] = torch.tensor(row)
    head = torch.tensor(vocab.encode(HEAD).ids)
    with torch.inference_mode():
        last, _, _ = model(image, head, vocab.token_to_id(AFTER_IMAGE), ids, torch.float32)
        return [model.logits(last[0, i, : len(row)]) for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    return torch.randint(0, 256, (1, 84, 112, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_a_block_is_blind_to_its_neighbours(model: Model, image: torch.Tensor) -> None:
    alone = run(model, image, ["find Settings"])[0]
    beside = run(model, image, ["find Settings", "What is the text of the element in the box (1,2),(3,4)?"])[0]
    torch.testing.assert_close(alone, beside, atol=1e-4, rtol=1e-4)


def test_transformers_gives_the_same_logits(model: Model, image: torch.Tensor) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen2VLForConditionalGeneration.from_pretrained(ASSETS, dtype=torch.float32).eval()
    vocab, text = bpe.load(), 'Where is the element for the command "open help"? Answer with a bounding box.'
    prompt = HEAD + "<|image_pad|>" * 12 + AFTER_IMAGE + text + TURN
    ids = torch.tensor([vocab.encode(prompt).ids])
    patches = patchify(image, torch.float32)[0].view(-1, 3, 1, 14, 14).repeat(1, 1, 2, 1, 1).flatten(1)
    with torch.inference_mode():
        logits = theirs(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=patches,
            image_grid_thw=torch.tensor([[1, 6, 8]]),
            mm_token_type_ids=(ids == vocab.token_to_id("<|image_pad|>")).int(),
        ).logits[0]
    ours = run(model, image, [text])[0]
    # float32 logits of up to about 40, summed in another order: 0.02 is far under any gap that matters
    torch.testing.assert_close(logits[-len(ours) :], ours, atol=2e-2, rtol=0)


def test_pixels_equal_the_slow_processor(image: torch.Tensor) -> None:
    processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    from PIL import Image

    from training.evaluate import pixels

    # 100×90 is resized to 112×84: 4×3 cells
    picture = Image.fromarray(image[0].numpy()).resize((100, 90))
    processor = processing.Qwen2VLImageProcessorPil.from_pretrained(ASSETS)
    out = processor(images=[picture], return_tensors="pt")
    values, rows, columns = pixels(picture)
    assert out["image_grid_thw"].tolist() == [[1, 2 * rows, 2 * columns]]
    torch.testing.assert_close(out["pixel_values"], torch.from_numpy(values), atol=1e-5, rtol=1e-5)


def test_folder_is_small_and_in_bf16() -> None:
    from safetensors import safe_open

    files = [f for f in Path(ASSETS).iterdir() if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= 20_000_000
    with safe_open(ASSETS / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(k).get_dtype() for k in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert SHAPE.hidden // SHAPE.heads == 64


def test_muon_update_has_singular_values_near_one() -> None:
    g = torch.randn(2, 48, 32, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(g))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_helpers_beside_the_model_are_those_that_training_wants() -> None:
    from safetensors.torch import load_file

    helpers = Helpers(SHAPE)
    helpers.load_state_dict({k: v.float() for k, v in load_file(HELPERS).items()}, strict=True)


def test_cells_without_a_character_weigh_little_and_skipped_ones_nothing() -> None:
    logits = torch.zeros(3, 4)
    logits[0, 0] = logits[1, 2] = 1.0  # classes 0 and 2 preferred where nothing and class 1 are true
    logits[2, 3] = 50.0
    target = torch.tensor([0, 1, SKIP], dtype=torch.uint8)
    total = torch.tensor(3 + torch.e).log()
    # -log p: log(3 + e) - 1 for the empty cell (weight 0.05), log(3 + e) for the letter (weight 1)
    torch.testing.assert_close(_classes(logits, target), (0.05 * (total - 1) + total) / 1.05)


def test_learning_rate_warms_up_and_ends_at_nothing() -> None:
    assert rate(0.0) == 0.02
    assert rate(0.2) == 1.0
    assert rate(0.675) == pytest.approx(0.5)  # half of the way from 0.35 to 1
    assert rate(1.0) == 0.0
