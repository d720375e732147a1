"""API keys: from settings and a file, each with the tenant it stands for. Only digests are kept.

```yaml
keys:
  - name: team-a            # in metrics, the access log and errors
    key_file: /run/secrets/team-a   # or `key: TEXT`, or `sha256: HEX` of the key
    weight: 2               # every field of `base/terms.Tenant` may follow
    max_running: 4
```
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import msgspec

from headrace.base.config import AccessConfig
from headrace.base.errors import ConfigError
from headrace.base.terms import Tenant

MAX_FILE_BYTES = 1 << 20
MAX_KEYS = 1000
"""Every request is compared with every key."""


class KeyEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One entry of a keys file."""

    name: str
    key: str | None = None
    key_file: str | None = None
    sha256: str | None = None
    weight: float = 1.0
    priority: int = 0
    max_running: int | None = None
    max_queued: int | None = None
    kv_share: float = 1.0
    tokens_per_minute: int | None = None

    def tenant(self) -> Tenant:
        """Whom the key stands for.

        Raises:
            ConfigError: a bound is out of range.
        """
        return Tenant(
            **{f.name: getattr(self, f.name) for f in fields(Tenant)}
        )  # a new bound must be here too

    def digest(self) -> bytes:
        """SHA-256 of the key.

        Raises:
            ConfigError: no key, several, or one that cannot be read.
        """
        if (self.key, self.key_file, self.sha256).count(None) != 2:
            raise ConfigError(f"key {self.name!r} needs one of key, key_file, sha256")
        if self.sha256 is not None:
            try:
                found = bytes.fromhex(self.sha256)
            except ValueError:
                found = b""
            if len(found) != 32:
                raise ConfigError(f"key {self.name!r}: sha256 must be 64 hexadecimal digits")
            return found
        return digest_of(self._text(), self.name)

    def _text(self) -> str:
        if self.key is not None:
            return self.key
        try:
            return Path(self.key_file or "").read_text().strip()
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"key {self.name!r}: cannot read {self.key_file}: {err}") from err


class KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """A keys file."""

    keys: list[KeyEntry]


class Keys:
    """The keys of a server; without any, everybody may pass.

    Raises:
        ConfigError: two keys are equal, or two names.
    """

    def __init__(self, entries: Iterable[tuple[bytes, Tenant]]) -> None:
        self._entries = tuple(entries)
        if len(self._entries) > MAX_KEYS:
            raise ConfigError(f"{len(self._entries)} API keys, limit {MAX_KEYS}: remove some")
        names = [tenant.name for _, tenant in self._entries]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two API keys have the name {name!r}: rename one")
            if not name.isprintable():
                raise ConfigError(f"API key {name!r} has a control character in its name: rename it")
        if len({digest for digest, _ in self._entries}) < len(names):
            raise ConfigError("two names have the same API key: give each its own")

    def __len__(self) -> int:
        return len(self._entries)

    def tenant(self, name: str) -> Tenant | None:
        """Share and limits of the key of that name; None: it is gone. Without keys nobody has limits."""
        if not self._entries:
            return Tenant(name=name)
        return next((tenant for _, tenant in self._entries if tenant.name == name), None)

    def find(self, given: bytes) -> Tenant | None:
        """Whom a key stands for; None: it is not one of these.

        Digests have one length and every one is compared, so neither content nor length nor place of a key
        shows in the time this takes.
        """
        digest = hashlib.sha256(given).digest()
        found: Tenant | None = None
        for known, tenant in self._entries:
            if hmac.compare_digest(digest, known):
                found = tenant
        return found


def load_keys(config: AccessConfig) -> Keys:
    """The keys that the settings name.

    Raises:
        ConfigError: a key is empty or double, or the file cannot be read or says something unknown.
    """
    entries = [
        (digest_of(key, f"key-{n}"), Tenant(name=f"key-{n}")) for n, key in enumerate(config.api_key, 1)
    ]
    entries += [(entry.digest(), entry.tenant()) for entry in _file_entries(config.keys_file)]
    return Keys(entries)


def digest_of(key: str, name: str) -> bytes:
    """SHA-256 of a key.

    Raises:
        ConfigError: it is empty, or could not be sent in a header.
    """
    if not key or key != key.strip() or not key.isprintable():
        raise ConfigError(f"API key {name!r} is empty, or has spaces around it or control characters")
    return hashlib.sha256(key.encode()).digest()


def _file_entries(file: str | None) -> list[KeyEntry]:
    if file is None:
        return []
    import yaml  # noqa: PLC0415 - few servers have such a file

    path = Path(file)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes; a keys file is short")
        loaded: Any = yaml.safe_load(path.read_text())
        return msgspec.convert(cast("object", loaded), KeyFile).keys
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as err:
        raise ConfigError(f"cannot read {path}: {type(err).__name__}", param="access.keys_file") from err
    except msgspec.ValidationError as err:
        raise ConfigError(f"{path}: {err}", param="access.keys_file") from err
