"""Write a GGUF model as a float32 checkpoint, for engines that read no GGUF: needs torch and transformers.

python -m benchmarks.peers.export_fp32 MODEL.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def export(model: Path, folder: Path) -> None:
    """Dequantize; the checkpoint says nothing of the file it came from."""
    source, name = str(model.parent), model.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    plain = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(config), dtype=torch.float32)
    missing = plain.load_state_dict(loaded.state_dict(), strict=False)
    tied = {"lm_head.weight"} if plain.config.tie_word_embeddings else set()
    if set(missing.missing_keys) - tied or missing.unexpected_keys:
        raise ValueError(f"{model} does not fit its architecture: {missing}")
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
