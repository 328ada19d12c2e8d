"""Q4_1 GGUF → the same weights as BF16, F16 and Q8_0 GGUF, for llama.cpp and OpenVINO. Needs `pip install gguf`.

    python benchmarks/cpu_llm/gguf_variants.py SmolLM2.gguf FOLDER

Matrices are widened to float32 and stored anew; one-dimensional tensors stay float32. Nothing else changes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
from gguf.quants import dequantize, quantize

VARIANTS = {
    "BF16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
OWN_FIELDS = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in VARIANTS:
        out = arguments.folder / f"model-{name}.gguf"
        if not out.exists():
            convert(arguments.source, out, name)
        print(out)


def convert(source: Path, out: Path, variant: str) -> None:
    kind, file_type = VARIANTS[variant]
    reader = gguf.GGUFReader(source)
    unfinished = out.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, reader.fields["general.architecture"].contents())
    writer.add_file_type(file_type)
    for field in reader.fields.values():
        if field.name not in OWN_FIELDS:
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        wide = dequantize(tensor.data, tensor.tensor_type)
        if wide.ndim < 2:
            writer.add_tensor(tensor.name, wide)
        else:
            writer.add_tensor(tensor.name, quantize(wide, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(out)


if __name__ == "__main__":
    main()
