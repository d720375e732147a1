"""Mutations of JSON values, of JSON text and of bytes. All draw from the `Random` they are given."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 16, 17, 255, 256, 257, 4096, 65535, 65536, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32),
    *((1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**30, -(10**400)),
    *(0.0, -0.0, 0.5, 1.5, 1e-300, 1e300, -1e300, 5e-324, 1.0000000001, 1e9),
)
TEXTS: tuple[str, ...] = (
    *(
        "",
        " ",
        "a",
        "\x00",
        "\ud800",
        "\udfff\ud800",
        "\ufdd0\ufdd1",
        "\ufeff",
        "\u202e",
        "é" * 300,
        "🙂" * 100,
    ),
    *("<|im_end|>", "<tool_call>", "</think>", "{{", "{% for %}", "${a}", "../../etc/passwd", "%s%n", "NaN"),
    *("a" * 3000, "\n" * 3000, "٣", "1e5", "null", "true", "http://127.0.0.1:1/x.png", "data:;base64,AA=="),
    *("![x](http://127.0.0.1:1/)", "\\", '"', "'; drop table", "(" * 400, "[a-" * 200, "x{99999}{99999}"),
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [{}],
    {"": {}},
    {"type": None},
    {"a": [1, "x", None]},
)
RAW: tuple[bytes, ...] = (
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"0x10",
        b"tru",
        b"'a'",
    ),
    *(
        b'"\\ud800"',
        b'"\\u0000"',
        b'"\xff\xfe"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\x01"',
        b'"\\x"',
    ),
    *(b"9" * 5000, b"-" + b"9" * 400, b"1" + b"0" * 400 + b".0", b"1e-99999", b'"' + b"a" * 70_000 + b'"'),
    *(
        b"[" * 3000,
        b"[" * 60 + b"]" * 60,
        b'{"a":' * 60 + b"1" + b"}" * 60,
        b"/*x*/1",
        b"1,",
        b"",
        b"\xef\xbb\xbf1",
    ),
    *(
        b"[" + b"[],",
        b"[" + b"1," * 3000 + b"1]",
        b"[" + b'"s",' * 3000 + b'"s"]',
        b"[" + b"null," * 40 + b"null]",
    ),
)
_MARK = "\U000f1234 raw"
_LONG = 600
_MAX_CHARS = 100_000
"""A value of more characters is mutated no further."""


def odd_value(rng: Random) -> Any:
    """A value that is rarely what is asked for."""
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(TEXTS)
    if kind == 5:
        return [rng.choice((rng.choice(NUMBERS), rng.choice(TEXTS), None))] * rng.choice(
            (1, 2, 17, 65, _LONG)
        )
    if kind == 6:
        return nested(rng, rng.choice((3, 20, 47, 48, 49, 66, 300)))
    return deepcopy(rng.choice(ODD))  # whoever gets it may change it


def nested(rng: Random, depth: int) -> Any:
    """Lists and objects inside each other."""
    value: Any = rng.choice(NUMBERS)
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {rng.choice(("a", "type", "properties", "content")): value}
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside a JSON value; not deeper than Python recurses."""
    todo = [value]
    while todo:
        at = todo.pop()
        items = at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ()
        for key, item in items:
            yield at, key
            todo.append(item)


def mutate_json(rng: Random, value: Any, times: int = 1) -> Any:
    """A copy of a JSON value (an object or list) with some things in it changed."""
    made = json.loads(json.dumps(value))
    for _ in range(times):
        text = json.dumps(made)
        if len(text) > _MAX_CHARS:
            return made
        made = json.loads(text)  # what was repeated is the same object in many places: one edit would be many
        found = list(places(made))
        if not found:
            return made
        holder, key = rng.choice(found)
        rng.choice(_EDITS)(rng, holder, key)
    return made


def _set(rng: Random, holder: Any, key: Any) -> None:
    holder[key] = odd_value(rng)


def _drop(rng: Random, holder: Any, key: Any) -> None:
    del rng
    del holder[key]


def _rename(rng: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        value = holder.pop(key)
        holder[rng.choice((key + "x", key.upper(), key.title(), key[:-1], f" {key}", key + "\x00", ""))] = (
            value
        )


def _repeat(rng: Random, holder: Any, key: Any) -> None:
    times = rng.choice((2, 5, 17, 65, _LONG))
    if isinstance(holder, list):
        holder[:] = holder * min(times, max(1, 20_000 // max(1, len(json.dumps(holder)))))
    else:
        holder[key] = [holder[key]] * min(times, 20)


def _wrap(rng: Random, holder: Any, key: Any) -> None:
    holder[key] = rng.choice(
        ([holder[key]], {"a": holder[key]}, json.dumps(holder[key]), {"text": holder[key]})
    )


def _nudge(rng: Random, holder: Any, key: Any) -> None:
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = rng.choice((True, False, 0, 1, "true"))
    elif isinstance(value, int | float):
        holder[key] = rng.choice((value + 1, value - 1, -value, f"{value}.5", str(value), value * 1000))
    elif isinstance(value, str) and value:
        at = rng.randrange(len(value))
        holder[key] = value[:at] + rng.choice(TEXTS) + value[at + rng.randrange(2) :]


_EDITS: tuple[Callable[[Random, Any, Any], None], ...] = (
    _set,
    _set,
    _set,
    _drop,
    _rename,
    _repeat,
    _wrap,
    _nudge,
    _nudge,
)


def spell(rng: Random, value: Any) -> bytes:
    """A JSON value as bytes, now and then with raw text no encoder writes, or names that occur twice."""
    kind = rng.random()
    found = list(places(value))
    if kind < 0.15 and found:
        holder, key = rng.choice(found)
        holder[key] = _MARK
        text = json.dumps(value).encode()
        return text.replace(json.dumps(_MARK).encode(), rng.choice(RAW), 2)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.8).encode(errors="surrogatepass")
    if kind < 0.20:
        return damage(rng, text)
    if kind < 0.25 and isinstance(value, dict) and value:
        name = rng.choice(list(value))
        return text[:-1] + b", " + json.dumps({name: odd_value(rng)}).encode()[1:]
    if kind < 0.27:
        return rng.choice((b" " * 2000 + text, text + b"\n" * 2000, text + b"{}", b"\xef\xbb\xbf" + text))
    return text


def damage(rng: Random, data: bytes, times: int = 1) -> bytes:
    """Bytes with some of them flipped, cut out, doubled, or overwritten by a number with a meaning."""
    made = bytearray(data)
    for _ in range(times):
        if not made:
            return bytes(rng.randrange(256) for _ in range(rng.randrange(16)))
        at = rng.randrange(len(made))
        kind = rng.randrange(7)
        if kind == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            made[at] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256)))
        elif kind == 2:
            del made[at:]
        elif kind == 3:
            del made[at : at + rng.choice((1, 2, 4, 8, 64))]
        elif kind == 4:
            made[at:at] = made[at : at + rng.choice((1, 4, 8, 64))]
        elif kind == 5:
            made[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 8, 40))))
        else:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice([n for n in NUMBERS if isinstance(n, int)]) % (1 << 8 * width)
            made[at : at + width] = number.to_bytes(width, "little")
    return bytes(made)
