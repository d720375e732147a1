"""Bounds of batches are refused at start, not when the first batch fails."""

import pytest

from headrace.base.config import BatchConfig
from headrace.base.errors import ConfigError
from headrace.serve.server import check_batches


@pytest.mark.parametrize("name", ["max_files", "max_file_bytes", "max_lines", "max_lines_running"])
def test_a_bound_under_which_no_batch_could_run_is_refused(name):
    with pytest.raises(ConfigError, match=rf"batch.{name} must be at least 1, got 0"):
        check_batches(BatchConfig(**{name: 0}))
    check_batches(BatchConfig())
