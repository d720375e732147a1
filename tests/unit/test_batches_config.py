"""Bounds of batches are refused at start, not when the first batch fails."""

import pytest

from headrace.base.config import BatchConfig
from headrace.base.errors import ConfigError
from headrace.serve.server import check_batches


@pytest.mark.parametrize(
    "name", ["max_files", "max_bytes", "max_file_bytes", "max_lines", "max_lines_running"]
)
def test_a_bound_under_which_no_batch_could_run_is_refused(name):
    with pytest.raises(ConfigError, match=rf"batch.{name} must be at least 1, got 0"):
        check_batches(BatchConfig(**{name: 0}))
    check_batches(BatchConfig())


@pytest.mark.parametrize(("name", "value"), [("key_share", 0.0), ("key_share", 1.1), ("result_days", 0.0)])
def test_a_share_or_time_that_keeps_nothing_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"batch.{name} must be .*, got {value:g}"):
        check_batches(BatchConfig(**{name: value}))
