"""The short ways of a stream: events spelled once, and one wake-up of the event loop for many items."""

import asyncio
from threading import Thread

import pytest

from headrace.engine.async_llm import Mail
from headrace.engine.outputs import ChoiceDelta
from headrace.serve.answering import Answering, Spelled
from headrace.serve.routes.chat import ChatShape
from headrace.serve.routes.completions import CompletionShape
from headrace.serve.schema.answers import Envelope
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.completion import CompletionBody
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.support import CHAT_NEUTRAL, COMPLETION_NEUTRAL
from headrace.serve.stream import event


def answering(kind, name):
    if kind == "chat":
        raw = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        body = validate(ChatBody, raw, CHAT_NEUTRAL)
        shape, envelope = ChatShape(body, None), Envelope.chat(name, Spelled.MARK)
    else:
        body = validate(CompletionBody, {"prompt": "x", "stream": True}, COMPLETION_NEUTRAL)
        shape, envelope = CompletionShape(body, ["x"], None), Envelope.completion(name, "m")
    return Answering(served=None, body=body, shape=shape, envelope=envelope, num_choices=2)


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("name", ["r1", Spelled.MARK, f'"{Spelled.MARK}"'])
def test_a_spelled_event_is_the_event(kind, name):
    subject = answering(kind, name)
    spelled = Spelled(subject)
    for index in (0, 1, 0):
        for text in (" the", 'a "quote"\n', "\u2028é😀\x00", Spelled.MARK):
            delta = ChoiceDelta(index=index, text=text, token_ids=(5,), text_offset=3)
            whole = event(subject.envelope.chunk([subject.shape.delta(index, 0, delta)]))
            assert spelled.event(index, 0, text) == whole


def test_items_of_many_threads_arrive_in_order_with_few_wake_ups():
    async def run():
        loop = asyncio.get_running_loop()
        wakes, plain = [], loop.call_soon_threadsafe

        def counted(*args):
            wakes.append(1)
            return plain(*args)

        loop.call_soon_threadsafe = counted
        mail = Mail(loop)
        queues = [asyncio.Queue() for _ in range(4)]

        def work(first):
            for i in range(500):
                for queue in queues:
                    mail.put(queue, (first, i))

        threads = [Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # the loop stands still meanwhile, so all of it waits for one delivery
        for queue in queues:
            got = [await asyncio.wait_for(queue.get(), 5) for _ in range(1500)]
            for n in range(3):
                assert [i for first, i in got if first == n] == list(range(500))
            assert queue.empty()
        return len(wakes)

    assert asyncio.run(run()) <= 3


def test_mail_to_a_closed_loop_is_dropped():
    loop = asyncio.new_event_loop()
    mail, queue = Mail(loop), asyncio.Queue()
    loop.close()
    mail.put(queue, 1)
    mail.put(queue, 2)
    assert queue.empty()
