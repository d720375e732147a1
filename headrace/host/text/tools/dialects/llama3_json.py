"""Llama 3: the answer is `{"name": …, "parameters": {…}}`, maybe behind a tag, several parted by `;`."""

from collections.abc import Callable

from headrace.host.text.parts.reader import CallReader, Calls, FrameReader
from headrace.host.text.tools.dialect import Written, as_given, long_id

TAG = "<|python_tag|>"


class Llama3Json:
    """Bare objects at the start of the answer."""

    begins: tuple[str, ...] = (TAG,)
    bare = "{"
    new_id: Callable[[], str] = staticmethod(long_id)
    conversation = staticmethod(as_given)

    def reads(self, written: Written) -> bool:
        """Nothing but the tag stands before the object."""
        text = written.call.strip().removeprefix(TAG).lstrip()
        return text.startswith("{") and '"name"' in text

    def reader(self, calls: Calls, begin: str) -> CallReader:
        """Objects, parted by semicolons or lines."""
        del begin
        return FrameReader(calls, separators=";")


DIALECT = Llama3Json()
