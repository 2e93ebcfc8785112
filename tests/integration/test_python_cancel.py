"""Cancelling from Python: a stream that is left, dropped or told to end, a task that is cancelled."""
import asyncio
import gc
import unittest

from harness import OneDaemon, needs_model
from python_package import LONG, ellm


@needs_model
class Cancelling(OneDaemon):
    def setUp(self):
        self.client = ellm.Client(self.daemon.socket)
        self.addCleanup(self.client.close)

    def test_leaving_a_stream_cancels(self):
        for _ in self.client.generate_stream("Once", **LONG):
            break
        self.daemon.wait_idle()
        with self.client.generate_stream("Once", **LONG):
            pass
        self.daemon.wait_idle()
        self.client.generate_stream("Once", **LONG)             # dropped
        self.daemon.wait_idle()
        stream = self.client.generate_stream("Once", **LONG)
        for i, _ in enumerate(stream):
            if i == 3:
                stream.cancel()
        self.assertEqual(stream.completion.finish_reason, ellm.FinishReason.CANCELLED)
        self.assertLess(len(stream.completion.tokens), 1900)
        self.assertEqual(self.client.status().requests, [])

    def test_cancelling_a_task_cancels_its_request_alone(self):
        async def ask():
            async with ellm.AsyncClient(self.daemon.socket) as client:
                keep = asyncio.create_task(client.generate("Tom", temperature=0, max_tokens=700, ignore_eos=True))
                drops = [asyncio.create_task(client.generate("Sam", **LONG))]

                async def read():
                    async for _ in client.generate_stream("Lily", **LONG):
                        pass
                drops.append(asyncio.create_task(read()))
                while len((await client.status()).requests) < 3:
                    await asyncio.sleep(0.001)
                # Not before: reading a score's answer would keep this thread busy until the others have ended.
                drops += [asyncio.create_task(call) for call in (
                    client.score([1] + [403] * 2000, top=100), client.chat("no template", **LONG))]
                await client.status()
                for task in drops:
                    task.cancel()
                # Score and chat may have been faster.
                results = await asyncio.gather(*drops, return_exceptions=True)
                for result in results:
                    self.assertIsInstance(result, (asyncio.CancelledError, ellm.TemplateFailed, ellm.Scores))
                async for _ in client.generate_stream("Once", **LONG):
                    break
                gc.collect()
                while len((await client.status()).requests) > 1:
                    await asyncio.sleep(0.001)
                return await keep
        expected = self.client.generate("Tom", temperature=0, max_tokens=700, ignore_eos=True)
        self.assertEqual(asyncio.run(ask()).tokens, expected.tokens)
        self.daemon.wait_idle()


if __name__ == "__main__":
    unittest.main()
