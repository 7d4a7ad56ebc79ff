"""A lane that does not get on keeps what its request was charged, also when nobody waits for it."""

import attnd
from helpers import eventually, long_input
from long_work import begin, open_channel
from stopped_thread import StoppedThread


def test_memory_of_a_cancelled_run_counts_until_the_run_has_ended(start_server):
    server = start_server("--max-running", "1", "--max-request-seconds", "0")

    def charged():
        return server.metric("attnd_budget_charged_bytes")

    with attnd.Client(server.target, timeout=60) as client, open_channel(server.target) as channel:
        q = long_input(client, seconds=20)
        call = begin(channel, q)
        assert eventually(lambda: server.metric("attnd_memory_bytes", kind="workspace") > 0, 30)
        with StoppedThread(server.pid, "lane-0"):
            call.cancel()
            # Its caller is answered.
            assert eventually(lambda: server.metric("attnd_inflight_requests") == 0)
            assert server.metric("attnd_memory_bytes", kind="inputs") >= q.nbytes
            assert charged() >= q.nbytes
        assert eventually(lambda: charged() == 0)
