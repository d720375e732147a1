"""What matrices in bfloat16 are multiplied with."""

from headrace.base.config import DeviceConfig
from headrace.compute.ops.facts import check_rounding
from headrace.engine.settings.notes import Notes

_WHY = {
    "float32": "activations are not rounded where they meet bfloat16 weights",
    "bfloat16": "asked for: activations are rounded to bfloat16 where they meet bfloat16 weights",
}


def rounds(device: DeviceConfig) -> bool:
    """Whether activations that meet bfloat16 weights are rounded to bfloat16."""
    return device.float_activations == "bfloat16"


def note_activations(device: DeviceConfig, backend: str, notes: Notes) -> None:
    """Tell the choice.

    Raises:
        ConfigError: the backend does not offer it.
    """
    check_rounding(backend, rounds=rounds(device))
    asked = device.float_activations
    notes.add("device.float_activations", asked, asked, _WHY[asked])
