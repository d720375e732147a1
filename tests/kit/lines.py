"""Mixed text for tokenizer tests: the same lines at every call."""
# ruff: noqa: RUF001  (odd characters are the point)

import random

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "I'll",
    "we've",
    "DON'T",
    "naïve",
    "café",
    "Ångström",
    "coöperate",
    "señor",
    "straße",
    "Œuvre",
    "don’t",
    "東京",
    "日本語",
    "你好世界",
    "안녕하세요",
    "Привет",
    "мир",
    "שלום",
    "مرحبا",
    "हिन्दी",
    "ไทย",
    "🙂",
    "👩\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "é",
    "ö",
    "Å",
    "ﬁ",
    "①",
    "½",
    "Ⅷ",
    "٣٤٥",
    "12",
    "3.14159",
    "1,000,000",
    "0x1F",
    "1e-9",
    "2024-02-29",
    "foo_bar",
    "fooBar",
    "FooBAR",
    "HTTPServer",
    "a.b.c",
    "x+=1;",
    "!=",
    "",
    "==",
    "->",
    "=>",
    "::",
    "//",
    "/*",
    "*/",
    "<!--",
    "--flag",
    "http://example.com/?q=1&r=%20",
    "user@host",
    "\\n",
    "\\t",
    "...",
    "…",
    "—",
    "–",
    "“quoted”",
    "'single'",
    "`code`",
    "$x^2$",
    "{}",
    "[]",
    "()",
    "<>",
    "|",
]
LOOKALIKES = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_",
    "<im_end>",
    "<|IM_END|>",
    "</s>",
    "<s>",
    "<unk>",
    "<repo_name>",
    "<|fim_prefix|>",
    "<tool_call>",
    "</tool_call>",
    "[PAD151700]",
    "<0x0A>",
    "▁",
    "Ġ",
    "Ċ",
    "<|im_start|>user",
]
SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    " \n",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u200b",
    "\u0085",
    "\x0b",
    "",
)
CODE = (
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < 10; ++i) {\n\t\tsum += a[i];\n}\n",
    '{"key": [1, 2.5, null, true], "ü": "\\u00fc"}',
    "SELECT * FROM t WHERE a='b' AND c>=10;",
    "    if self.x is not None:\r\n        pass\r\n",
    "#include <stdio.h>\n\n\nint main(void){return 0;}",
    '<div class="a">&nbsp;</div>',
)


def mixed_lines(count: int, seed: int = 7) -> list[str]:
    """`count` lines of words, code, odd white space, special-token look-alikes and random Unicode."""
    rng = random.Random(seed)
    makers = (_words, _words, _code, _digits, _lookalikes, _unicode)
    return [rng.choice(makers)(rng) for _ in range(count)]


def _words(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randint(1, 16)))


def _code(rng: random.Random) -> str:
    return rng.choice(SPACES) + rng.choice(CODE) + rng.choice(CODE)[: rng.randint(0, 20)]


def _digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789٣Ⅷ½ .,-+ \n") for _ in range(rng.randint(1, 30)))


def _lookalikes(rng: random.Random) -> str:
    return "".join(
        rng.choice(LOOKALIKES if rng.random() < 0.4 else WORDS) + rng.choice(SPACES)
        for _ in range(rng.randint(1, 8))
    )


def _unicode(rng: random.Random) -> str:
    points = (
        rng.randint(1, 0x2FF),
        rng.randint(0x300, 0x1FFF),
        rng.randint(0x2000, 0xD7FF),
        rng.randint(0xE000, 0x1FAFF),
    )
    return (
        "".join(chr(rng.choice(points) + rng.randint(0, 40)) for _ in range(rng.randint(1, 24)))
        .encode("utf-8", "replace")
        .decode()
    )
