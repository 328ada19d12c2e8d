"""`visavis backends install`: an engine's environment made, and the engine in it tried on the bundled model."""

from __future__ import annotations

from pathlib import Path

from visavis.backends.environments import Environment, Recipe, Say, build, environments_folder
from visavis.backends.options import EngineOptions
from visavis.errors import BackendError

__all__ = ["install", "try_engine"]

VERIFY_CONTEXT = 1024  # tokens; enough for one sample screen


def install(recipe: Recipe, say: Say, root: Path | None = None) -> Environment:
    """Makes the environment, or finds it made. Sizes are said before anything is downloaded.

    Raises OptionError (disk, another installation under way) and BackendError (a step or the trial failed; then
    nothing is kept but the log).
    """
    folder = (root or environments_folder()) / recipe.engine
    say(
        f"{recipe.engine} {recipe.version} ({recipe.variant}): about {recipe.download_gb:g} GB to download, "
        f"{recipe.disk_gb:g} GB on disk, into {folder}"
    )
    return build(recipe, root, say, lambda python: try_engine(recipe, python))


def try_engine(recipe: Recipe, python: Path) -> None:
    """Lets the engine answer about one of the bundled screens. Raises BackendError."""
    from visavis.backends.worker import WorkerModel

    device = "cuda" if recipe.variant == "cuda" else "cpu"
    options = EngineOptions(
        device=device, dtype="auto", enforce_eager=True, max_model_len=VERIFY_CONTEXT, max_num_seqs=2, warmup=False
    )
    with WorkerModel(recipe.engine, python=str(python)) as model:
        model.load(None, options)
        completion = model.chat(_question(), max_tokens=8, ignore_eos=True)
        if len(completion.token_ids) != 8:
            raise BackendError(f"{recipe.engine} gave {len(completion.token_ids)} tokens instead of 8 in its trial")


def _question() -> list[dict[str, object]]:
    import numpy as np

    screen = (np.arange(84 * 112 * 3, dtype=np.uint32) % 251).astype(np.uint8).reshape(84, 112, 3)
    text = {"type": "text", "text": "What is on the screen?"}
    return [{"role": "user", "content": [{"type": "image", "image": screen}, text]}]
