import json
import time
from contextlib import suppress

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headrace.base.errors import CheckpointError, RequestError
from headrace.base.specs import TokenizerSource
from headrace.compute.weights.formats.gguf import FORMAT
from headrace.host.text.tokenizer import load_tokenizer
from headrace.host.text.vocab.pretokenize import RULE_BY_NAME
from headrace.host.text.vocab.spelling import CHAR_BY_BYTE
from tests.kit.vocabs import byte_metadata, byte_tokenizer, score_metadata, score_tokenizer


def token_id(tokenizer, text: str) -> int:
    found = tokenizer.token_id(text)
    assert found is not None
    return found


@pytest.mark.parametrize("text", ["", "hello", "é 123456\t\n  — 🙂", "x<|im_end|>hello", "<tool_call>a"])
def test_text_comes_back(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_special_tokens_are_read_only_when_asked_for():
    tokenizer = byte_tokenizer()
    end = token_id(tokenizer, "<|im_end|>")
    assert tokenizer.encode("a<|im_end|>b") == [97, end, 98]
    plain = tokenizer.encode("a<|im_end|>b", parse_special=False)
    assert end not in plain
    assert tokenizer.decode(plain) == "a<|im_end|>b"
    assert tokenizer.is_special(end)
    assert tokenizer.decode([97, end, 98]) == "ab"


def test_added_tokens_that_are_not_special_are_always_read():
    tokenizer = byte_tokenizer()
    call = token_id(tokenizer, "<tool_call>")
    assert tokenizer.encode("<tool_call>", parse_special=False) == [call]
    assert not tokenizer.is_special(call)
    assert tokenizer.decode([call]) == "<tool_call>"


def test_begin_token_comes_once():
    """TK-1."""
    tokenizer = byte_tokenizer(add_bos_token=True, add_eos_token=True)
    bos, eos = tokenizer.bos_id, tokenizer.token_id("<|im_end|>")
    assert tokenizer.add_bos
    assert tokenizer.encode("a") == [bos, 97, eos]
    assert tokenizer.encode("<s>a") == [bos, 97, eos]
    assert tokenizer.encode("a", add_special=False) == [97]


def test_end_tokens_are_united_from_all_sources(tmp_path):
    """TK-2."""
    tokenizer = byte_tokenizer(eos_token_id=3, eot_token_id=4, eom_token_id=5)
    named = {tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|endoftext|>")}
    assert tokenizer.end_ids == {3, 4, 5} | named
    write_directory(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 7, "text_config": {"eos_token_id": 8}}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    tokenizer = load_tokenizer(TokenizerSource(directory=tmp_path))
    assert tokenizer.end_ids == {5, 6, 7, 8, tokenizer.token_id("</s>")}


def test_harmony_message_end_does_not_end_the_answer():
    data = byte_metadata()
    for text in ("<|end|>", "<|return|>", "<|call|>"):
        data["tokenizer.ggml.tokens"].append(text)
        data["tokenizer.ggml.token_type"].append(3)
    tokenizer = load_tokenizer(TokenizerSource(gguf=data))
    assert tokenizer.token_id("<|end|>") not in tokenizer.end_ids
    assert {tokenizer.token_id("<|return|>"), tokenizer.token_id("<|call|>")} <= tokenizer.end_ids


def test_ids_past_the_vocabulary_stand_for_nothing():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode([104, tokenizer.vocab_size, 105]) == "hi"
    with pytest.raises(RequestError, match="-1"):
        tokenizer.decode([-1])


def test_lone_surrogate_is_refused_with_its_place():
    with pytest.raises(RequestError, match=r"U\+D800.*character 2"):
        byte_tokenizer().encode("ab\ud800")


def test_unknown_word_rule_is_refused_with_the_known_ones():
    for name in ("brandnew", None):
        with pytest.raises(CheckpointError, match="smollm") as caught:
            byte_tokenizer(pre=name)
        assert str(name) in str(caught.value) or "old file" in str(caught.value)


@pytest.mark.parametrize("name", sorted(RULE_BY_NAME))
def test_every_word_rule_keeps_all_text(name):
    tokenizer = byte_tokenizer(pre=name, add_bos_token=False)
    text = "I'll pay 1234567 €!\r\n\n  naïve 東京 x_1\t{a: 'b'}  — \uff12\uff13 ...\n e\u0301"
    assert tokenizer.decode(tokenizer.encode(text)) == text


WORDS = {  # word rule -> pieces of "It's 12345 HELLOWorld  \n x"
    "gpt-2": ["It", "'s", " 12345", " HELLOWorld", "  \n", " x"],
    "smollm": ["It", "'s", " ", "1", "2", "3", "4", "5", " HELLOWorld", "  \n", " x"],
    "llama-bpe": ["It", "'s", " ", "123", "45", " HELLOWorld", "  \n", " x"],
    "qwen2": ["It", "'s", " ", "1", "2", "3", "4", "5", " HELLOWorld", "  \n", " x"],
    "gpt-4o": ["It's", " ", "123", "45", " HELLOWorld", "  \n", " x"],
    "tekken": ["It", "'s", " ", "1", "2", "3", "4", "5", " HELLOWorld", "  \n", " x"],
    "deepseek-v3": ["It", "'s", " ", "123", "45", " HELLOWorld", "  \n", " x"],
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_word_rules_cut_where_their_families_do(name):
    cuts = RULE_BY_NAME[name].pre_tokenizer().pre_tokenize_str("It's 12345 HELLOWorld  \n x")
    words = [
        "".join(chr(next(b for b, c in CHAR_BY_BYTE.items() if c == ch)) for ch in word) for word, _ in cuts
    ]
    assert words == WORDS[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "rwkv"}, "rwkv"),
        ({"tokens": None}, "no vocabulary"),
        ({"tokens": "abc"}, "not an array"),
        ({"tokens": [1, 2]}, "wrong type"),
        ({"token_type": [1]}, "1 token types"),
        ({"merges": None}, "no merges"),
        ({"merges": ["ab"]}, "ab"),
        ({"merges": ["zz yy"]}, "merges"),
        ({"eos_token_id": 10**6}, "1000000"),
    ],
)
def test_broken_metadata_is_named(change, message):
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(TokenizerSource(gguf=changed(byte_metadata(), change)))


def changed(data: dict, change: dict) -> dict:
    data = data | {f"tokenizer.ggml.{k}": v for k, v in change.items()}
    return {k: v for k, v in data.items() if v is not None}


def test_no_source_is_refused():
    with pytest.raises(CheckpointError, match="--tokenizer"):
        load_tokenizer(TokenizerSource())


SCORES = {
    "\u2581": -1.0,
    "h": -2.0,
    "e": -3.0,
    "l": -4.0,
    "o": -5.0,
    "he": -6.0,
    "ll": -7.0,
    "hell": -8.0,
    "\u2581hell": -9.0,
}


def test_merging_by_score_puts_a_space_first_and_falls_back_to_bytes():
    tokenizer = score_tokenizer(SCORES)
    ids = tokenizer.encode("hello é")
    assert ids[0] == tokenizer.bos_id
    assert [tokenizer.token_bytes(i) for i in ids[1:]] == [b" hell", b"o", b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids) == "hello é"
    assert tokenizer.decode(ids[2:]) == "o é"
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_space_prefix_follows_the_file_and_every_special_token():
    pieces = [score_tokenizer(SCORES, add_space_prefix=flag).encode("he<s>he") for flag in (True, False)]
    first = score_tokenizer(SCORES)
    assert [first.token_bytes(i) for i in pieces[0]] == [b"<s>", b" ", b"he", b"<s>", b" ", b"he"]
    assert [first.token_bytes(i) for i in pieces[1]] == [b"<s>", b"he", b"<s>", b"he"]


def test_unigram_takes_the_most_likely_pieces():
    entries = ["<pad>", "</s>", "<unk>", "\u2581", "a", "b", "ab", "\u2581ab", "c"]
    data = {
        "model": "t5",
        "tokens": entries,
        "scores": [0.0, 0.0, 0.0, -3.0, -3.0, -3.0, -2.0, -4.0, -3.5],
        "token_type": [3, 3, 2, 1, 1, 1, 1, 1, 1],
        "eos_token_id": 1,
        "unknown_token_id": 2,
    }
    tokenizer = load_tokenizer(TokenizerSource(gguf={f"tokenizer.ggml.{k}": v for k, v in data.items()}))
    assert tokenizer.encode("abc  ab") == [7, 8, 7, 1]
    assert tokenizer.decode([7, 8, 7, 1]) == "abc ab"


def write_directory(folder, **parts):
    vocab = {CHAR_BY_BYTE[b]: b for b in range(256)}
    core = Tokenizer(models.BPE(vocab, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>", AddedToken("<|user|>", rstrip=True, special=True)])
    core.add_tokens(["<think>"])
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 256)])
    for name, part in parts.items():
        setattr(core, name, part)
    core.save(str(folder / "tokenizer.json"))


def test_directory_gives_ids_marks_and_template(tmp_path):
    write_directory(tmp_path)
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "A"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(TokenizerSource(directory=tmp_path))
    assert tokenizer.encode("hé<|user|>  x<think>") == [256, 104, 0xC3, 0xA9, 258, 120, 259]
    assert tokenizer.add_bos
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_template == "A"
    assert tokenizer.decode([256, 104, 259]) == "h<think>"
    (tmp_path / "chat_template.jinja").write_text("B")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False}))
    tokenizer = load_tokenizer(TokenizerSource(directory=tmp_path))
    assert tokenizer.chat_template == "B"
    assert tokenizer.encode("h") == [104]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_metaspace_directories_encode_as_the_library_does(tmp_path, scheme):
    pieces = {p: i for i, p in enumerate(["<unk>", "<s>", "\u2581", "a", "b", "\u2581a"])}
    core = Tokenizer(models.BPE(pieces, [("\u2581", "a")], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    core.decoder = decoders.Metaspace(prepend_scheme=scheme)
    core.add_special_tokens(["<s>"])
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(TokenizerSource(directory=tmp_path))
    for text in ("ab a", " ab", "<s>a", "a<s>a<s> b", "<s> a"):
        ids = core.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == core.decode(ids), text


def test_legacy_llama_directories_encode_as_the_library_does(tmp_path):
    pieces = {p: i for i, p in enumerate(["<unk>", "<s>", "\u2581", "a", "b", "\u2581a", "<0xC3>", "<0xA9>"])}
    core = Tokenizer(
        models.BPE(pieces, [("\u2581", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    core.decoder = decoders.Sequence(steps)
    core.add_special_tokens(["<s>"])
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(TokenizerSource(directory=tmp_path))
    for text in ("ab a", " ab", "<s>aé", "a<s>a<s> b"):
        ids = core.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == core.decode(ids), text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "does not exist"),
        ("tokenizer.json", "{", "tokenizer.json"),
        ("generation_config.json", "[1]", "list"),
        ("config.json", "{", "not JSON"),
    ],
)
def test_broken_directories_are_named(tmp_path, name, content, message):
    write_directory(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(TokenizerSource(directory=tmp_path))


@pytest.mark.perf
def test_building_is_quick(smollm2_path, qwen_small_path):
    for path, limit_s in ((smollm2_path, 0.25), (qwen_small_path, 0.9)):
        source = FORMAT.open(path).tokenizer_source
        best = min(timed(lambda source=source: load_tokenizer(source)) for _ in range(3))
        assert best < limit_s


def timed(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


ODD = (
    -1,
    0,
    2**63,
    "x",
    "",
    [],
    {},
    [1],
    [-1],
    ["a"],
    [[1]],
    [None],
    True,
    1.5,
    float("nan"),
    float("inf"),
    {"a": 1},
)
OTHERS = (
    *(
        "add_bos_token",
        "add_eos_token",
        "add_space_prefix",
        "precompiled_charsmap",
        "remove_extra_whitespaces",
    ),
    *("eot_token_id", "padding_token_id", "pre", "scores"),
)


@pytest.mark.parametrize("model", ["gpt2", "llama", "t5"])
def test_metadata_of_any_wrong_type_is_refused_and_nothing_else(model):
    scored = score_metadata({"a": -1.0, "\u2581b": -2.0}) | {"tokenizer.ggml.model": model}
    good = byte_metadata() if model == "gpt2" else scored
    for key in {*good, *(f"tokenizer.ggml.{k}" for k in OTHERS), "tokenizer.chat_template"}:
        for value in ODD:
            with suppress(CheckpointError):
                load_tokenizer(TokenizerSource(gguf=good | {key: value})).encode("hello w\u00f6rld")


ODD_JSON = (None, -1, 0, 2**63, "x", "", [], {}, [1], [[1]], True, 1.5, {"content": 1}, [{}], [{"name": []}])
KEYS = {
    "tokenizer_config.json": ("bos_token", "eos_token", "chat_template", "add_bos_token", "add_eos_token"),
    "special_tokens_map.json": ("bos_token", "eos_token"),
    "generation_config.json": ("eos_token_id",),
    "config.json": ("eos_token_id", "text_config"),
}


@pytest.mark.parametrize("name", KEYS)
def test_small_files_of_any_wrong_type_are_refused_and_nothing_else(tmp_path, name):
    write_directory(tmp_path)
    good = json.loads((tmp_path / name).read_text()) if (tmp_path / name).exists() else {}
    for key in KEYS[name]:
        for value in ODD_JSON:
            (tmp_path / name).write_text(json.dumps(good | {key: value}))
            with suppress(CheckpointError):
                load_tokenizer(TokenizerSource(directory=tmp_path))


def test_a_panic_of_the_library_is_a_broken_file(tmp_path):
    write_directory(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"]["special_tokens"] = {}
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="cannot encode"):
        load_tokenizer(TokenizerSource(directory=tmp_path))


@pytest.mark.parametrize("specials", [["<" + "x" * 200_000 + ">"], [f"<{i:0100}>" for i in range(20_000)]])
def test_monstrous_special_tokens_are_refused_before_they_cost_memory(specials):
    data = byte_metadata()
    entries, types = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    data |= {"tokenizer.ggml.tokens": [*entries, *specials]}
    data |= {"tokenizer.ggml.token_type": [*types, *[3] * len(specials)]}
    with pytest.raises(CheckpointError, match="special token"):
        load_tokenizer(TokenizerSource(gguf=data))
