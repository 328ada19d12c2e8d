"""`visavis plan`, called in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plan.configs import qwen2_vl_7b, qwen25_1_5b
from visavis.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with config.json alone."""
    return write(tmp_path / "vl", qwen2_vl_7b())


def write(folder: Path, config: dict[str, Any], **files: Any) -> Path:
    folder.mkdir()
    for name, content in {"config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return folder


def run(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["plan", *argv])
    out, err = capfd.readouterr()
    return code, out, err


def document(capfd: pytest.CaptureFixture[str], *argv: str) -> Any:
    code, out, _ = run(capfd, "--json", *argv)
    assert code in (0, 1)
    return json.loads(out)


def test_a_config_alone_is_enough(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capfd, "-m", str(folder), "--gpu-memory", "24GiB", "--image", "1920x1080", "--concurrency", "4"
    )
    assert code == 0
    assert err == ""
    assert "vllm serve" in out
    assert "GiB of one device" in out


def test_the_bundled_model_is_planned_and_named(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "--gpu-memory", "8GiB")
    assert code == 0
    assert out.startswith("tiny-screen")
    assert "bundled model tiny-screen" in err
    assert "-m" not in next(line for line in out.splitlines() if "visavis ask" in line).split()
    # other engines need its folder
    serve = next(line for line in out.splitlines() if "vllm serve" in line)
    assert Path(serve.split("vllm serve ")[1].split()[0], "config.json").is_file()


def test_json_is_one_document_with_the_workload_asked_for(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = document(
        capfd,
        *("-m", str(folder), "--gpu-memory", "24GiB", "--image", "2x640x480", "--image", "1920x1080"),
        *("--prompt-tokens", "100", "--max-tokens", "50", "--concurrency", "3", "--backends", "vllm,native"),
    )
    assert [e["engine"] for e in found["engines"]] == ["vllm", "native"]
    # 640×480 → 644×476 = 391, 1920×1080 → 1932×1092 = 2691; two markers each
    assert found["workload"]["prompt_tokens"] == 100 + 2 * (391 + 2) + 2691 + 2
    assert found["workload"]["assumed"] == []
    assert found["device"]["total_bytes"] == round(23.65 * 1024**3)


def test_text_alone_can_be_planned_for_a_vision_model(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = document(capfd, "-m", str(folder), "--gpu-memory", "24GiB", "--image", "none")
    assert found["workload"]["image_tokens"] == 0


def test_the_folders_own_pixel_bounds_and_context_hold(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = qwen2_vl_7b() | {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    }
    bounded = write(tmp_path / "m", config, preprocessor_config={"min_pixels": 3136, "max_pixels": 1280 * 28 * 28})
    found = document(capfd, "-m", str(bounded), "--gpu-memory", "80GiB")
    assert found["workload"]["image_tokens"] == 1222  # 1316×728
    assert found["context"] == 131072


def test_exit_code_1_and_the_ways_out_when_nothing_fits(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "-m", str(folder), "--gpu-memory", "16GiB", "--backends", "hf,vllm")
    assert code == 1
    assert "Only a quantised, split or offloaded run fits" in " ".join(out.split())


def test_what_native_makes_fit_by_itself_ends_with_0(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("-m", str(folder), "--gpu-memory", "16GiB", "--backends", "native", "--why")
    code, out, _ = run(capfd, *asked)
    assert code == 0
    assert "loaded int8 by itself" in " ".join(out.split())
    assert "weights, native" in out  # by part, in int8
    assert run(capfd, *asked, "--dtype", "bfloat16")[0] == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpu-memory", "24"], "did you mean 24GiB?"),
        (["--gpu-memory", "24GiG"], "did you mean 24GiB?"),
        (["--gpu-memry", "24GiB"], "did you mean --gpu-memory?"),
        (["--image", "1920"], "--image: '1920' is not a size"),
        (["--image", "none", "--image", "1x1"], "--image: 'none' is not a size"),
        (["--prompt-tokens", "0"], "'0' is not a whole number from 1 on"),
        (["--backends", "vlm"], "did you mean vllm?"),
        (["--backends", ","], "--backends"),
        (["--quantization", "fp88"], "did you mean fp8?"),
        (["--tensor-parallel-size", "3"], "possible: 1, 2, 4"),
        (["--prompt-tokens", "99999999"], "the model's context is 32768"),
        (["Qwen/Qwen2-VL-7B-Instruct"], "the model is given with -m"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    folder: Path, capfd: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    given = ["-m", str(folder), *([] if "--gpu-memory" in argv else ["--gpu-memory", "24GiB"]), *argv]
    code, out, err = run(capfd, *given)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_folder_without_a_usable_config_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = write(tmp_path / "broken", {**qwen25_1_5b(), "hidden_size": None})
    code, _, err = run(capfd, "-m", str(broken), "--gpu-memory", "24GiB")
    assert code == 2
    assert "hidden_size is missing" in err
    assert str(broken) in err


def test_planning_imports_no_torch(folder: Path) -> None:
    script = (
        "import sys\nfrom visavis.cli import main\n"
        f"code = main(['plan', '-m', {str(folder)!r}, '--gpu-memory', '24GiB', '--json', '-q'])\n"
        "heavy = [m for m in ('torch', 'transformers', 'huggingface_hub', 'rich') if m in sys.modules]\n"
        "print(code, heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.strip().splitlines()[-1] == "0 []"
    assert json.loads(done.stdout)["fits"] is True


def test_the_reasons_are_asked_for_with_why(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ("-m", str(folder), "--gpu-memory", "24GiB")
    _, short, _ = run(capfd, *asked)
    _, whole, _ = run(capfd, *asked, "--why")
    assert "stored as" in whole
    assert "stored as" not in short
    assert "setting " not in short
    assert short.count("\n") < whole.count("\n") / 2
