"""The folder that is written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ConfigError, HeadraceError
from headrace.compute.quant.scheme import find_scheme
from headrace.compute.weights.formats.safetensors import read_json, read_tensors

BF16_EXPONENT = np.uint16(0x7F80)
"""The exponent bits of a bfloat16: all are set in NaN and infinities."""
_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.uint16): "BF16", np.dtype(np.int64): "I64"}


def check_folder(path: Path) -> None:
    """Refuse a place where heads cannot be written, before hours are spent on them.

    Raises:
        ConfigError: a file is there, or other things than heads written before.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; --out needs a folder", param="out")
    others = (
        {f.name for f in path.iterdir()} - {"config.json", "model.safetensors", "report.json"}
        if path.exists()
        else ()
    )
    if others:
        raise ConfigError(
            f"{path} holds {min(others)!r}; --out needs a new folder, or one with heads", param="out"
        )


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 values, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _is_finite(values: NDArray[Any]) -> bool:
    if values.dtype == np.uint16:
        return not bool(((values & BF16_EXPONENT) == BF16_EXPONENT).any())
    return bool(np.isfinite(values).all())


def read_folder(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The report and the tensors of heads written before: float32 values, int64 tokens.

    Raises:
        ConfigError: there are none.
        CheckpointError: they are broken.
    """
    if not (path / "report.json").is_file():
        raise ConfigError(
            f"{path} holds no heads to go on from; leave --resume out to begin anew", param="resume"
        )
    report = read_json(path / "report.json")
    tensors, _ = read_tensors(path)
    found: dict[str, NDArray[Any]] = {}
    for name, each in tensors.items():
        if each.type_name == "i64":
            found[name] = np.ascontiguousarray(each.data).view(np.int64)
        else:
            values = find_scheme(each.type_name, name).dequantize(each.rows())
            found[name] = values.reshape(each.shape)
    return report, found


def write_folder(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], report: Mapping[str, Any]
) -> None:
    """Write heads. uint16 arrays are bfloat16 bits.

    Raises:
        HeadraceError: a weight is NaN or infinite; nothing is written.
    """
    for name, values in tensors.items():
        if not _is_finite(values):
            raise HeadraceError(
                f"the trained tensor {name!r} holds NaN or infinite values, so these heads are not written; "
                f"train again with another --seed or other --prompts"
            )
    path.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {}
    offset = 0
    for name, values in tensors.items():
        spans = [offset, offset + values.nbytes]
        header[name] = {"dtype": _NAMES[values.dtype], "shape": list(values.shape), "data_offsets": spans}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (path / "report.json").write_text(json.dumps(report, indent=1) + "\n")
