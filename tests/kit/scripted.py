"""A model that says what it is told: next token = a table lookup of the last one; and a stand-in tokenizer.

The checkpoint is a legal llama: identity embedding, attention and MLP that add nothing, and an output head
that is the transition table. Texts are spelled by a byte vocabulary.
"""

import json
from pathlib import Path

import numpy as np

from tests.kit.engine import write_checkpoint
from tests.kit.vocabs import byte_tokenizer


def scripted_checkpoint(transitions: dict[int, int], vocab: int = 320, length: int = 256) -> Path:
    """A checkpoint in which `transitions[t]` follows token t with probability near 1 (others: t itself)."""
    head = np.zeros((vocab, vocab), np.float32)
    for token in range(vocab):
        head[transitions.get(token, token), token] = 4.0
    tensors = {
        "model.embed_tokens.weight": np.eye(vocab, dtype=np.float32),
        "lm_head.weight": head,
        "model.norm.weight": np.ones(vocab, np.float32),
        "model.layers.0.input_layernorm.weight": np.ones(vocab, np.float32),
        "model.layers.0.post_attention_layernorm.weight": np.ones(vocab, np.float32),
        "model.layers.0.self_attn.q_proj.weight": np.zeros((32, vocab), np.float32),
        "model.layers.0.self_attn.k_proj.weight": np.zeros((32, vocab), np.float32),
        "model.layers.0.self_attn.v_proj.weight": np.zeros((32, vocab), np.float32),
        "model.layers.0.self_attn.o_proj.weight": np.zeros((vocab, 32), np.float32),
        "model.layers.0.mlp.gate_proj.weight": np.zeros((32, vocab), np.float32),
        "model.layers.0.mlp.up_proj.weight": np.zeros((32, vocab), np.float32),
        "model.layers.0.mlp.down_proj.weight": np.zeros((vocab, 32), np.float32),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": vocab,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    name = "scripted-" + format(abs(hash(json.dumps(sorted(transitions.items())))), "x")
    return write_checkpoint(name, config, tensors)


def text_of():
    """The text side of the scripted model."""
    from headrace.engine.text import Text
    from headrace.host.text.chat import ChatTemplate

    tokenizer = byte_tokenizer()
    return Text(tokenizer, ChatTemplate(None, {}), frozenset(tokenizer.end_ids))
