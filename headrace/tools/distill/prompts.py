"""What the model is asked for the text that heads are trained on."""

from itertools import product
from pathlib import Path
from random import Random

from headrace.base.errors import ConfigError

MAX_FILE_BYTES = 16 << 20
_FORMS = (
    "Explain {} to a child.",
    "Write a short story about {}.",
    "List five facts about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write an e-mail to a friend about {}.",
    "Give step-by-step instructions that have to do with {}.",
    "Write a Python function that has to do with {}, with a docstring.",
    "Compare {} with something similar.",
    "Write a dialogue between two people about {}.",
    "Summarize the history of {} in one paragraph.",
    "Write three questions about {} and answer them.",
    "Describe {} as JSON with five fields.",
)
_TOPICS = (
    "rivers", "bicycles", "the moon", "bread", "chess", "trains", "volcanoes", "public libraries", "bees",
    "electricity", "gardening", "prime numbers", "the human heart", "sailing", "coffee", "mountains",
    "music lessons", "sorting a list", "recycling", "the Roman empire", "dreams", "bridges",
    "job interviews", "vaccines", "painting a room", "databases", "friendship", "winter", "a lost dog",
    "budgets", "photography", "running a marathon", "weather forecasts", "dates and times",
    "learning a language", "robots", "tea", "whales", "reading files", "city parks",
)  # fmt: skip


def make_prompts(path: Path | None, seed: int) -> list[str]:
    """Prompts in a random order: the lines of a file, or built-in ones.

    Raises:
        ConfigError: the file cannot be read, or holds too few.
    """
    built_in = [form.format(topic) for form, topic in product(_FORMS, _TOPICS)]
    found = built_in if path is None else _read(path)
    Random(seed).shuffle(found)
    return found


def _read(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; take fewer prompts")
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompts cannot be read: {error}") from error
    if len(found) < 2:
        raise ConfigError(
            f"{path} holds {len(found)} prompts; 2 are needed, one of them to judge the heads by"
        )
    return found
