"""An upload as `multipart/form-data` (RFC 7578): fields of text and one file, in memory."""

import re

from headrace.base.errors import RequestError

MAX_PARTS = 16
_BOUNDARY = re.compile(rb'boundary="?([0-9A-Za-z\'()+_,./:=?-]{1,70})"?')
_NAME = re.compile(rb'[; ]name="([^"]*)"')
_FILE = re.compile(rb'filename="([^"]*)"')


def read_form(content_type: str, body: bytes) -> tuple[dict[str, str], str, bytes]:
    """The fields, the file's name and its content.

    Raises:
        RequestError: it is no such form, has no part `file`, or a part twice.
    """
    found = _BOUNDARY.search(content_type.encode("latin-1", "replace"))
    if not content_type.startswith("multipart/form-data") or found is None:
        raise RequestError(
            "send the file as multipart/form-data with the parts purpose and file", param="file"
        )
    fields: dict[str, str] = {}
    name, content = "", None
    parts = (b"\r\n" + body).split(b"\r\n--" + found[1], MAX_PARTS + 1)
    if len(parts) > MAX_PARTS + 1:
        raise RequestError(f"the form has more than {MAX_PARTS} parts", param="file")
    for part in parts[1:]:
        head, _, data = part.partition(b"\r\n\r\n")
        key, file = _NAME.search(head), _FILE.search(head)
        if key is None:
            continue
        label = key[1].decode(errors="replace")[:64]
        if label in fields or (label == "file" and content is not None):
            raise RequestError(f"the form has two parts named {label!r}", param=label)
        if label == "file":
            name, content = (file[1] if file else b"file").decode(errors="replace")[:255], data
        else:
            fields[label] = data.decode(errors="replace")[:1024]
    if content is None:
        raise RequestError("the form has no part named file", param="file")
    return fields, name, content
