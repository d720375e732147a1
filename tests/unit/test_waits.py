"""How long clients keep the server waiting: sums of seconds, by who waits for what."""

import asyncio

import pytest

from headrace.serve.connection import connection_type
from headrace.serve.front.waits import Level, Waits


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_level_sums_up_those_that_are_there_still():
    clock = Clock()
    level = Level(clock)
    with level.one():
        clock.now += 2.0
        assert level.seconds == 2.0
        with level.one():
            clock.now += 3.0
        assert level.seconds == 8.0
    clock.now += 50.0
    assert level.seconds == 8.0


def post(waits, app, arriving, method="POST"):
    """Run a request whose messages each take that long to come."""
    clock = Clock()
    for level in (waits.requests, waits.bodies, waits.unread):
        level.__init__(clock)
    messages = iter(arriving)

    async def receive():
        seconds, message = next(messages)
        clock.now += seconds
        return message

    async def send(message):
        clock.now += 5.0

    asyncio.run(waits.around(app(clock))({"type": "http", "method": method}, receive, send))
    return [waits.requests.seconds, waits.bodies.seconds, waits.unread.seconds]


def reading(clock):
    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            clock.now += 1.0
        await send({"type": "http.response.start"})
        await receive()  # listens for the client's leaving

    return app


PART = {"type": "http.request", "more_body": True}
LAST = {"type": "http.request", "more_body": False}


def test_waiting_for_the_body_is_told_from_working_and_from_listening():
    arriving = [(2.0, PART), (3.0, PART), (4.0, LAST), (40.0, {"type": "http.disconnect"})]
    assert post(Waits(), reading, arriving) == [9.0 + 2.0 + 5.0 + 40.0, 9.0, 0.0]


def test_requests_without_a_body_are_not_counted():
    assert post(Waits(), reading, [(2.0, LAST), (4.0, LAST)], method="GET") == [0.0, 0.0, 0.0]


def test_a_request_that_fails_is_over():
    def failing(clock):
        async def app(scope, receive, send):
            await receive()
            raise ValueError("planted")

        return app

    waits = Waits()
    with pytest.raises(ValueError, match="planted"):
        post(waits, failing, [(2.0, LAST)])
    before = waits.requests.seconds
    waits.requests._clock.now += 10.0
    assert (before, waits.requests.seconds) == (2.0, 2.0)


class Transport:
    def abort(self):
        pass

    def get_write_buffer_size(self):
        return 1

    def close(self):
        pass


def test_connections_count_while_their_client_does_not_read():
    async def run():
        clock, loop = Clock(), asyncio.get_running_loop()
        unread = Level(clock)
        kind = connection_type(30.0, unread)
        one, other = (object.__new__(kind) for _ in range(2))
        for connection in (one, other):
            connection.loop, connection.transport = loop, Transport()
            connection.flow = type("Flow", (), {"pause_writing": int, "resume_writing": int})()
        one.pause_writing()
        clock.now += 1.0
        one.pause_writing()  # once more changes nothing
        other.pause_writing()
        clock.now += 1.0
        one.resume_writing()
        one.resume_writing()
        clock.now += 1.0
        other._stop_unread()  # as when the connection is lost
        clock.now += 9.0
        return unread.seconds

    assert asyncio.run(run()) == 1.0 + 2.0 + 1.0
