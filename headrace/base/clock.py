"""The one place that reads the time."""

import time


def now_s() -> float:
    """Monotonic seconds, for durations and deadlines."""
    return time.monotonic()


def unix_s() -> float:
    """Seconds since 1970, for time stamps that people see."""
    return time.time()


def cpu_s() -> float:
    """CPU seconds this process has used."""
    return time.process_time()
