"""Tiny made-up checkpoints: every family in float32 with weights of standard deviation 0.2."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

VOCAB = 256
STD = 0.2
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 24, "tie_word_embeddings": True}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {"num_hidden_layers": 3}),
    "qwen2_window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "gemma2": ("Gemma2", GEMMA),
    "gemma3": ("Gemma3", {**GEMMA, "num_hidden_layers": 7, "final_logit_softcapping": 20.0}),
    "phi3": ("Phi3", {"sliding_window": 40}),
}


@dataclass(frozen=True)
class Made:
    """A checkpoint directory and the torch model it was saved from (float32, eager attention)."""

    path: Path
    model: Any = field(repr=False)

    def logits(self, tokens) -> np.ndarray:
        """Logits of every position [T, V] from transformers, one shot, no cache."""
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()

    def greedy(self, tokens, count) -> list[int]:
        """Greedy tokens from transformers, with its cache."""
        import torch

        out: list[int] = []
        with torch.no_grad():
            result = self.model(torch.tensor([list(tokens)]), use_cache=True)
            for _ in range(count):
                out.append(int(result.logits[0, -1].argmax()))
                result = self.model(
                    torch.tensor([[out[-1]]]), past_key_values=result.past_key_values, use_cache=True
                )
        return out


@cache
def _root() -> TemporaryDirectory:
    return TemporaryDirectory(prefix="headrace-checkpoints-")


def make(family: str, **changes: Any) -> Made:
    """A checkpoint of a family (a key of FAMILIES), made once per test session for equal arguments."""
    return _make(family, _frozen(changes))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return ("dict", *((k, _frozen(v)) for k, v in sorted(value.items())))
    return ("list", *map(_frozen, value)) if isinstance(value, list) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, tuple):
        kind, *items = value
        return {k: _thawed(v) for k, v in items} if kind == "dict" else [_thawed(v) for v in items]
    return value


@cache
def _make(family: str, frozen: Any) -> Made:
    import torch
    import transformers

    prefix, own = FAMILIES[family]
    settings = {**BASE, **own, **_thawed(frozen)}
    config_class = getattr(transformers, f"{prefix}{'Text' if prefix == 'Gemma3' else ''}Config")
    config = config_class(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(11)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).to(torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * STD
            # Gemma stores w - 1; all norms then lie around one.
            centre = 1.0 if "norm" in name and not prefix.startswith("Gemma") else 0.0
            parameter.copy_(noise + centre)
    path = Path(_root().name) / f"{family}-{len(list(Path(_root().name).iterdir()))}"
    model.save_pretrained(path)
    return Made(path=path, model=model)


def tokens(count: int, seed: int = 1) -> list[int]:
    """Random token ids; the range leaves the special ones out."""
    return [int(t) for t in np.random.default_rng(seed).integers(3, VOCAB, count)]
