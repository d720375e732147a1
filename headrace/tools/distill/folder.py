"""The folder that is written."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.errors import ConfigError, HeadraceError
from headrace.compute.quant.scheme import find_scheme
from headrace.compute.weights.formats.safetensors import read_json, read_tensors

BF16_EXPONENT = np.uint16(0x7F80)
"""The exponent bits of a bfloat16: all are set in NaN and infinities."""
_FILES = "config.json", "model.safetensors", "report.json"
"""In the order in which they are replaced: a report never tells of heads that are not there."""
_PART = ".part"
"""What the names of files end with that are being written."""
_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.uint16): "BF16", np.dtype(np.int64): "I64"}


def check_folder(path: Path) -> None:
    """Refuse a place where heads cannot be written, before hours are spent on them.

    Raises:
        ConfigError: a file is there, or other things than heads written before.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; --out needs a folder", param="out")
    others = (
        {f.name for f in path.iterdir()} - {*_FILES, *(name + _PART for name in _FILES)}
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

    All files are written beside those that are there and replace them when all are whole, the report last.

    Raises:
        HeadraceError: a weight is NaN or infinite, or a file cannot be written; what was there is whole.
    """
    for name, values in tensors.items():
        if not _is_finite(values):
            raise HeadraceError(
                f"the trained tensor {name!r} holds NaN or infinite values, so these heads are not written; "
                f"train again with another --seed or other --prompts"
            )
    try:
        path.mkdir(parents=True, exist_ok=True)
        _write_file(path / ("config.json" + _PART), [_json(config)])
        _write_file(path / ("model.safetensors" + _PART), _parts(tensors))
        _write_file(path / ("report.json" + _PART), [_json(report)])
        for name in _FILES:
            (path / (name + _PART)).replace(path / name)
    except OSError as error:
        for name in _FILES:
            with suppress(OSError):
                (path / (name + _PART)).unlink()
        raise HeadraceError(f"the heads cannot be written to {path}: {error}") from error


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode()


def _parts(tensors: Mapping[str, NDArray[Any]]) -> Iterator[bytes]:
    """The bytes of a safetensors file."""
    header: dict[str, Any] = {}
    offset = 0
    for name, values in tensors.items():
        spans = [offset, offset + values.nbytes]
        header[name] = {"dtype": _NAMES[values.dtype], "shape": list(values.shape), "data_offsets": spans}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for values in tensors.values():
        yield np.ascontiguousarray(values).tobytes()


def _write_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file and wait until the disk has it: a name that is replaced earlier could end up empty."""
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
