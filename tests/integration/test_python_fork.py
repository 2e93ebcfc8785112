"""The Python package `ellm` in a program that forks, and what is no prompt or has failed already."""
import asyncio
import os
import sys
import unittest

from harness import OneDaemon, needs_model
from python_package import ellm

LONG = dict(max_tokens=300, ignore_eos=True)


@needs_model
class Fork(OneDaemon):
    def in_a_child(self, body):
        """Runs body in a fork; fails where it raises or takes long."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                import signal
                signal.alarm(30)
                body()
                status = 0
            except BaseException as error:
                print("in the child:", repr(error), file=sys.stderr)
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_the_parents_requests_go_on_and_the_child_has_its_own(self):
        with ellm.Client(self.daemon.socket) as client:
            stream = client.generate_stream("Once upon a time", **LONG)
            pieces = iter(stream)
            next(pieces)

            def body():
                with self.assertRaisesRegex(ellm.Lost, "forked"):
                    next(pieces)
                self.assertEqual(len(client.generate("Once", max_tokens=3, ignore_eos=True).tokens), 3)
                stream.cancel()
                client.close()

            self.in_a_child(body)
            for _ in pieces:
                pass
            self.assertEqual(len(stream.completion.tokens), 300)
            self.assertEqual(stream.completion.finish_reason, ellm.FinishReason.LENGTH)

    def test_an_asyncio_client_in_a_child(self):
        async def parent():
            async with ellm.AsyncClient(self.daemon.socket) as client:
                stream = client.generate_stream("Once upon a time", **LONG)
                pieces = aiter(stream)
                await anext(pieces)

                def body():
                    asyncio.events._set_running_loop(None)   # as multiprocessing does

                    async def own():
                        answer = await client.generate("Once", max_tokens=3, ignore_eos=True)
                        self.assertEqual(len(answer.tokens), 3)
                        await client.close()
                    asyncio.new_event_loop().run_until_complete(own())

                self.in_a_child(body)
                async for _ in pieces:
                    pass
                return stream.completion
        self.assertEqual(len(asyncio.run(parent()).tokens), 300)


@needs_model
class Failed(OneDaemon):
    def test_bytes_are_no_prompt(self):
        with ellm.Client(self.daemon.socket) as client:
            for call in (client.generate, client.score):
                with self.assertRaisesRegex(TypeError, "not bytes"):
                    call(b"Once upon a time")
            self.assertEqual(len(client.generate("Once", max_tokens=2, ignore_eos=True).tokens), 2)

    def test_a_stream_that_failed_fails_again(self):
        with ellm.Client(self.daemon.socket) as client:
            stream = client.generate_stream("x", model="nonesuch")
            for _ in range(2):
                with self.assertRaises(ellm.NoSuchModel):
                    list(stream)

        async def ask():
            async with ellm.AsyncClient(self.daemon.socket) as client:
                stream = client.generate_stream("x", model="nonesuch")
                for _ in range(2):
                    with self.assertRaises(ellm.NoSuchModel):
                        async for _ in stream:
                            pass
        asyncio.run(asyncio.wait_for(ask(), 30))


if __name__ == "__main__":
    unittest.main()
