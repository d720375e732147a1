"""What trees of drafts would gain: counted by hand on a few places."""

import numpy as np
import pytest

from benchmarks.speculation.trees import best_paths, chain, markdown, tree

RANKS = np.array([[0, 0, 0, 1, 1, 2, 40], [0, 0, 1, 0, 0, 0, 0], [0, 5, 0, 1, 0, 0, 0]])
"""Three places deep, seven ways that the right tokens took."""


def test_a_chain_goes_as_far_as_all_are_likeliest():
    assert chain(RANKS, 1).tokens == pytest.approx(1 + 3 / 7)
    assert chain(RANKS, 2).tokens == pytest.approx(1 + 3 / 7 + 2 / 7)
    assert chain(RANKS, 3).tokens == pytest.approx(1 + 3 / 7 + 2 / 7 + 1 / 7)
    assert chain(RANKS, 3) == chain(RANKS, 9)
    assert chain(RANKS, 9).rows == chain(RANKS, 9).passes == 3


def test_the_best_tree_has_the_paths_that_occur_most():
    assert best_paths(RANKS, 4) == [(0,), (1,), (0, 0), (1, 0)]
    assert (40,) not in best_paths(RANKS, 99)


@pytest.mark.parametrize("nodes", range(1, 14))
def test_all_that_lead_to_a_path_are_in_the_tree(nodes):
    paths = best_paths(RANKS, nodes)
    assert all(path[:-1] in paths for path in paths if len(path) > 1)


def test_a_tree_is_accepted_along_the_right_way():
    found = tree(RANKS, [(0,), (1,), (0, 0), (1, 0)])
    assert (found.rows, found.passes) == (4, 2)
    # ways of length 2, 2, 1, 2, 2, 0, 0
    assert found.tokens == pytest.approx(1 + 9 / 7)


def test_speed_counts_rows_and_passes():
    found = tree(RANKS, [(0,), (1,), (0, 0), (1, 0)])
    assert found.speed(4.0, 0.0, 0.0) == pytest.approx(found.tokens)
    assert found.speed(4.0, 0.5, 1.0) == pytest.approx(found.tokens / 2)


def test_trees_are_judged_on_other_places_than_they_are_chosen_on():
    ranks = np.array([[0, 3] * 10])
    assert "| 1 | 1.00 | 1.00 x | 1.00 | 1.00 x | 1 |" in markdown(ranks, [1], (1.0, 0.0, 0.0))
