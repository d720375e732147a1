import itertools

import pytest

from headrace.base.errors import RequestError
from headrace.host.text.stop import StopScanner


def run(stops, pieces, **options):
    scanner, sent = StopScanner(stops, **options), ""
    for piece in pieces:
        text, stop = scanner.push(piece)
        sent += text
        if stop is not None:
            return sent, stop
    return sent + scanner.flush(), None


@pytest.mark.parametrize("cuts", list(itertools.product([0, 1], repeat=9)))
def test_stop_is_found_at_every_split_and_nothing_of_it_leaks(cuts):
    """TK-3: every split of a stop over tokens."""
    pieces, text = [""], "CDEFGHIJKL"
    for char, cut in zip(text, (0, *cuts), strict=True):
        if cut:
            pieces.append("")
        pieces[-1] += char
    assert run(["DEFGHIJ"], pieces) == ("C", "DEFGHIJ")


def test_leak_of_the_alphabet():
    scanner = StopScanner(["DEFGHIJ"])
    assert scanner.push("ABC") == ("ABC", None)
    assert [scanner.push(p) for p in ("DEF", "G", "HI")] == [("", None)] * 3
    assert scanner.push("Jx") == ("", "DEFGHIJ")
    assert scanner.push("more") == ("", "DEFGHIJ")
    assert scanner.flush() == ""


def test_held_text_comes_when_it_cannot_match_any_more():
    scanner = StopScanner(["DEFGHIJ"])
    assert scanner.push("xDEF") == ("x", None)
    assert scanner.push("DE") == ("DEF", None)
    assert scanner.push("?") == ("DE?", None)
    assert scanner.push("D") == ("", None)
    assert scanner.flush() == "D"


def test_stop_strings_are_kept_when_asked_for():
    assert run(["END"], ["a E", "ND b"], include=True) == ("a END", "END")


def test_first_complete_stop_counts_and_the_longer_of_two_that_end_together():
    assert run(["abcd", "bc"], list("xabcd")) == ("xa", "bc")
    assert run(["bc", "abc"], list("xabcd")) == ("x", "abc")
    assert run(["abc", "bc"], ["xabcd"]) == ("x", "abc")
    assert run(["aab", "ab"], list("aaab")) == ("a", "aab")


def test_prompt_text_never_takes_part():
    """TK-3: a stop that begins in the prompt does not match."""
    # The prompt ended with "DEF"; the answer goes on with the rest of the stop string.
    assert run(["DEFGHIJ"], ["GHIJ", "ok"]) == ("GHIJok", None)


def test_no_stops_hold_nothing_and_empty_ones_are_refused():
    assert StopScanner([]).push("abc") == ("abc", None)
    with pytest.raises(RequestError, match="empty"):
        StopScanner(["a", ""])
