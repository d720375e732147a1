"""Write docs/settings.md from the settings tree: `python docs/make_settings.py`."""

from itertools import groupby
from pathlib import Path

from headrace.base.config import SettingInfo, all_settings

HEAD = """# Settings

Generated from `headrace/base/config.py` by `make docs`. A default of `auto` is resolved at start, with
a reason that the start-up table prints. Precedence: flag, then `HEADRACE_SECTION_NAME` in the
environment, then the YAML file (`--config FILE`, `section: {name: value}`), then the default.
"""


def row(s: SettingInfo) -> str:
    default = {None: "auto", (): "none"}.get(s.default, f"`{s.default}`")
    choices = f" One of: {', '.join(f'`{c}`' for c in s.choices)}." if s.choices else ""
    return f"| `--{s.flag}` | `{s.section}.{s.name}` | {default} | {s.help}.{choices} |"


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for section, settings in groupby(all_settings(), key=lambda s: s.section):
        parts.append(f"\n## {section}\n\n| flag | setting | default | what it does |\n|---|---|---|---|")
        parts.extend(row(s) for s in settings)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "settings.md").write_text(render())
