"""KV events over ZeroMQ as a router reads them: a subscriber that keeps the set of blocks, with pyzmq and msgpack."""
import time
import unittest

import bed
import msgpack
import zmq
from bed import free_port

BLOCK = 16


class Subscriber:
    """Blocks that a server holds, by what it tells: hash -> (parent, tokens)."""

    def __init__(self, port, topic=b"kv"):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.blocks, self.numbers, self.batches = {}, [], []

    def close(self):
        self.socket.close(0)
        self.context.term()

    def take(self, number, payload):
        """One batch, as vLLM's own classes would decode it."""
        stamp, events, rank = msgpack.unpackb(payload)
        assert abs(stamp - time.time()) < 600 and rank == 0, (stamp, rank)
        self.numbers.append(int.from_bytes(number, "big"))
        self.batches.append(payload)
        for kind, *rest in events:
            if kind == "BlockStored":
                hashes, parent, tokens, size, lora, medium, lora_name = rest
                assert size == BLOCK and len(tokens) == BLOCK * len(hashes) and (lora, medium, lora_name) == (None, "GPU", None)
                assert parent is None or parent in self.blocks, "a block without the one before it"
                for i, one in enumerate(hashes):
                    assert one not in self.blocks, "a block that is there is told again"
                    self.blocks[one] = (parent, tokens[i * BLOCK:(i + 1) * BLOCK])
                    parent = one
            elif kind == "BlockRemoved":
                for one in rest[0]:
                    del self.blocks[one]
            else:
                assert kind == "AllBlocksCleared", kind
                self.blocks.clear()

    def listen(self, until, seconds=30):
        end = time.monotonic() + seconds
        while not until(self):
            assert time.monotonic() < end, f"{len(self.blocks)} blocks after {self.numbers}"
            if self.socket.poll(100):
                topic, number, payload = self.socket.recv_multipart()
                assert topic == b"kv", topic
                self.take(number, payload)

    def chain(self, tokens):
        """How many tokens of a text the server holds, by the blocks alone."""
        parent, held = None, 0
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            parent = next((h for h, b in self.blocks.items() if b == (parent, tokens[at:at + BLOCK])), None)
            if parent is None:
                break
            held += BLOCK
        return held


def started(*flags):
    """A server with events, and a subscriber that has heard it."""
    port, replay = free_port(), free_port()
    server = bed.tiny_server("--spec", "off", "--parallel", "2", "--cache-ram", "0", "--kv-events", f"tcp://127.0.0.1:{port}",
                             "--kv-events-replay", f"tcp://127.0.0.1:{replay}", "--kv-events-topic", "kv", *flags)
    subscriber = Subscriber(port)
    time.sleep(0.3)  # a subscription takes a moment; what came before is asked for again
    return server, subscriber, replay


class Events(unittest.TestCase):
    def setUp(self):
        self.server, self.subscriber, self.replay = started()
        self.addCleanup(self.server.__exit__, None)
        self.addCleanup(self.subscriber.close)

    def ask(self, tokens, **more):
        return self.server.post("/v1/completions", {"prompt": tokens, "max_tokens": 2, "temperature": 0, "ignore_eos": True, **more})

    def test_blocks_are_those_that_the_cache_has(self):
        one, two = [i % 90 + 5 for i in range(200)], [i % 70 + 7 for i in range(150)]
        self.ask(one)
        self.subscriber.listen(lambda s: s.chain(one) == 192)
        self.ask(two)
        self.subscriber.listen(lambda s: s.chain(two) == 144)
        self.assertEqual(self.subscriber.chain(one), 192)
        # The same beginning in a second slot is not told again (the subscriber checks), and the cache agrees.
        usage = self.ask(one[:160] + [3] * 40)["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 159)
        self.subscriber.listen(lambda s: s.chain(one[:160] + [3] * 32) == 192)
        for slot in (0, 1):
            self.assertEqual(self.server.request("POST", f"/slots/{slot}?action=erase")[0], 501)  # without --slot-save-path
        for seed in range(4):  # other texts take the slots: what was there is told as removed
            self.ask([50 + seed] * 300)
        self.subscriber.listen(lambda s: s.chain([53] * 300) == 288 and s.chain(one) == 0)
        numbers = self.subscriber.numbers
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))

    def test_salts_have_hashes_of_their_own(self):
        text = [i % 60 + 5 for i in range(64)]
        self.ask(text)
        self.subscriber.listen(lambda s: len(s.blocks) == 4)
        self.ask(text, cache_salt="mine")
        self.subscriber.listen(lambda s: len(s.blocks) == 8)

    def test_replay(self):
        self.ask([i % 90 + 5 for i in range(100)])
        self.subscriber.listen(lambda s: len(s.blocks) == 6)
        socket = self.subscriber.context.socket(zmq.DEALER)
        socket.connect(f"tcp://127.0.0.1:{self.replay}")
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        again = Subscriber(free_port())
        self.addCleanup(again.close)
        while True:
            self.assertTrue(socket.poll(20000), "no replay")
            empty, number, payload = socket.recv_multipart()
            self.assertEqual(empty, b"")
            if number == (-1).to_bytes(8, "big", signed=True):
                break
            again.take(number, payload)
        socket.close(0)
        self.assertEqual(again.numbers[0], 0)  # the first batch says that nothing is held
        self.assertEqual(again.blocks, self.subscriber.blocks)

    def test_an_address_that_cannot_be_had(self):
        with self.assertRaisesRegex(RuntimeError, "--kv-events: 'tcp://127.0.0.1:99999'"):
            bed.tiny_server("--kv-events", "tcp://127.0.0.1:99999").__exit__(None)


if __name__ == "__main__":
    bed.main()
