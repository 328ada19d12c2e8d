"""Dependencies point one way; what is heavy is imported late."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "visavis"

# A module may import modules of its own layer's package and of lower layers only.
LAYERS = [
    {"errors"},
    {"prompt", "sampling", "chat.types", "backends.options", "compiling", "machine", "pool"},
    {"pixel_kernels"},
    {"child_process", "patches", "weight_files"},
    {"grounding"},
    {"completion", "engine_inputs", "detokenize"},
    {"chat"},
    {"families", "engine"},
    {"backends"},
    {"report"},
    {"plan"},
    {"compare", "bench", "server", "hyperbench"},
    {"cli"},
    {"__main__"},
]

# Methods of the basic types that reach up on demand: the whole list, each with its reason.
LAZY_UPWARD = {
    ("prompt", "engine_inputs"),  # Prompt.for_hf()
    ("prompt", "families"),  # Prompt.for_… asks the family
}

ENGINE_MAY_IMPORT = {"torch", "numpy", "safetensors", "tokenizers", "triton"}
ENGINE_MAY_IMPORT_LAZILY = {"llguidance"}  # the grammar library
ENGINE_MAY_USE = {"errors", "prompt", "sampling", "completion", "patches", "weight_files", "machine", "child_process"}
ENGINE_MAY_USE |= {"compiling"}


def _module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layer(module: str) -> int | None:
    for length in (2, 1):
        prefix = ".".join(module.split(".")[:length])
        for level, names in enumerate(LAYERS):
            if prefix in names:
                return level
    return None


def _unit(module: str) -> str:
    """The package (or module) of the layer table that `module` belongs to."""
    two = ".".join(module.split(".")[:2])
    return two if any(two in names for names in LAYERS) else module.split(".")[0]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imports(path: Path) -> list[tuple[str, bool, int]]:
    """(full module name, lazy?, line) of every run-time import in a file."""
    found = []

    def visit(node: ast.AST, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if _is_type_checking(child):
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, lazy, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                module = child.module or ""
                for alias in child.names:
                    full = f"{module}.{alias.name}"
                    is_module = module.startswith("visavis") and (
                        (SOURCE.parent / Path(*full.split("."))).with_suffix(".py").exists()
                        or (SOURCE.parent / Path(*full.split("."))).is_dir()
                    )
                    found.append((full if is_module else module, lazy, child.lineno))
            visit(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(ast.parse(path.read_text("utf-8")), False)
    return found


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_module_has_a_layer() -> None:
    unknown = [_module_name(p) for p in FILES if _module_name(p) and _layer(_module_name(p)) is None]
    assert unknown == []


def test_imports_point_down() -> None:
    wrong = []
    for path in FILES:
        module = _module_name(path)
        if not module:
            continue  # the top package's lazy exports
        for target, lazy, line in _imports(path):
            if not target.startswith("visavis."):
                continue
            name = target.removeprefix("visavis.")
            here, there = _unit(module), _unit(name)
            if here == there or (lazy and (here, there) in LAZY_UPWARD):
                continue
            mine, theirs = _layer(module), _layer(name)
            if mine is None or theirs is None or theirs >= mine:
                wrong.append(f"{path.name}:{line}: {here} imports {there}")
    assert wrong == []


def test_the_engine_knows_only_its_few_libraries() -> None:
    wrong = []
    for path in sorted((SOURCE / "engine").rglob("*.py")):
        for target, lazy, line in _imports(path):
            top = target.split(".")[0]
            if lazy and top in ENGINE_MAY_IMPORT_LAZILY:
                continue
            if top == "visavis":
                unit = _unit(target.removeprefix("visavis."))
                if unit not in ENGINE_MAY_USE | {"engine"}:
                    wrong.append(f"{path.name}:{line}: {target}")
            elif top not in ENGINE_MAY_IMPORT and top not in sys.stdlib_module_names:
                wrong.append(f"{path.name}:{line}: {target}")
    assert wrong == []


def test_no_import_circles_between_packages() -> None:
    edges: dict[str, set[str]] = {}
    for path in FILES:
        module = _module_name(path)
        for target, lazy, _ in _imports(path):
            if module and target.startswith("visavis.") and not lazy:
                here, there = _unit(module), _unit(target.removeprefix("visavis."))
                if here != there:
                    edges.setdefault(here, set()).add(there)
    done: set[str] = set()

    def walk(unit: str, trail: tuple[str, ...]) -> None:
        assert unit not in trail, f"import circle: {' → '.join([*trail, unit])}"
        if unit not in done:
            for other in edges.get(unit, ()):
                walk(other, (*trail, unit))
            done.add(unit)

    for unit in list(edges):
        walk(unit, ())


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import visavis", ("torch", "numpy", "PIL", "rich", "transformers", "huggingface_hub", "jinja2")),
        ("import visavis.cli", ("torch", "transformers", "huggingface_hub")),
        (
            "import visavis.cli.app; visavis.cli.app.build_parser('ask')",
            ("visavis.cli.compare", "visavis.cli.bench", "visavis.cli.plan", "numpy", "PIL", "rich"),
        ),
        ("import visavis.families, visavis.chat, visavis.sampling", ("torch", "transformers", "huggingface_hub")),
        ("import visavis.engine", ("transformers", "torchvision", "rich", "torch._dynamo")),
    ],
)
def test_heavy_libraries_are_imported_late(code: str, unwanted: tuple[str, ...]) -> None:
    script = f"import sys\n{code}\nprint([m for m in {unwanted!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert out.stdout.strip() == "[]"
