"""The Python package and a daemon that comes later, is killed, or gives way to the next one."""
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from harness import ELLMD, STORIES, Daemon, environment, needs_model
from python_package import LONG, ellm


@needs_model
class Restarts(unittest.TestCase):
    def start(self, directory, **options):
        return Daemon(models={"stories": STORIES}, options=["--model", "stories"], directory=directory, **options)

    def kill(self, daemon):
        daemon.process.kill()
        daemon.process.wait()
        daemon.log.close()

    def test_a_daemon_that_comes_later(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as directory:
            later = threading.Timer(0.15, lambda: started.append(self.start(directory)))
            started = []
            later.start()
            with ellm.Client(directory + "/s", wait=30) as client:
                self.assertEqual(client.generate("Once", max_tokens=3).model, "stories")
            later.join()

            async def ask():
                async with ellm.AsyncClient(directory + "/s", wait=30) as client:
                    return (await client.generate("Once", max_tokens=3)).model
            started[0].stop()
            later = threading.Timer(0.15, lambda: started.append(self.start(directory)))
            later.start()
            self.assertEqual(asyncio.run(ask()), "stories")
            later.join()
            started[1].stop()

    def test_the_wait_is_bounded(self):
        begin = time.monotonic()
        with self.assertRaises(ellm.Absent):
            ellm.Client("/nowhere/ellmd.sock", wait=0.1)
        with self.assertRaises(ellm.Absent):
            asyncio.run(ellm.AsyncClient("/nowhere/ellmd.sock", wait=0.1).status())
        self.assertGreaterEqual(time.monotonic() - begin, 0.2)

    def test_a_socket_that_is_activated(self):
        """As systemd does it: the socket is there first, the daemon starts because somebody connects."""
        with tempfile.TemporaryDirectory(prefix="ellm") as directory, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(directory + "/s")
            listener.listen()
            answers = []
            caller = threading.Thread(target=lambda: answers.append(ellm.Client(directory + "/s", wait=0).status().pid))
            caller.start()
            time.sleep(0.1)                                     # it waits for hello by now
            with open(directory + "/config", "w") as file:
                file.write('models_dir = "%s"\n' % directory)
            command = 'import os, sys; os.environ["LISTEN_PID"] = str(os.getpid()); os.dup2(int(sys.argv[1]), 3); ' \
                      'os.set_inheritable(3, True); os.execv(sys.argv[2], sys.argv[2:])'
            process = subprocess.Popen(
                [sys.executable, "-c", command, str(listener.fileno()), ELLMD, "--config", directory + "/config",
                 "--threads", "1", "--kv-keep", "off", "--memory-keep", "off"],
                env={**environment(directory), "LISTEN_FDS": "1"}, stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()])
            caller.join(30)
            process.terminate()
            self.assertEqual(process.wait(20), 0)
            self.assertEqual(answers, [process.pid])

    def test_killed_between_connect_and_request(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as directory:
            daemon = self.start(directory)
            client = ellm.Client(daemon.socket, wait=30)
            for _ in range(2):
                pid = client.status().pid
                self.kill(daemon)
                daemon = self.start(directory, wait=False)
                self.assertNotEqual(client.status().pid, pid)

            async def ask(daemon):
                async with ellm.AsyncClient(daemon.socket, wait=30) as client:
                    pid = (await client.status()).pid
                    self.kill(daemon)
                    again = self.start(directory, wait=False)
                    self.assertNotEqual((await client.status()).pid, pid)
                    return again
            daemon = asyncio.run(ask(daemon))
            client.close()
            daemon.stop()

    def test_killed_in_the_middle_of_an_answer(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as directory:
            daemon = self.start(directory)
            client = ellm.Client(daemon.socket, wait=30)
            others = [client.generate_stream("Tom", **LONG) for _ in range(12)]     # so that it takes a while
            with self.assertRaises(ellm.Lost) as raised:
                for i, _ in enumerate(client.generate_stream("Once", **LONG)):
                    if i == 0:
                        self.kill(daemon)
            self.assertTrue(raised.exception.request_sent)
            self.assertIn("it may have run", str(raised.exception))
            for other in others:
                with self.assertRaises(ellm.Lost):
                    list(other)
            daemon = self.start(directory)
            self.assertEqual(client.status().pid, daemon.process.pid)       # the client lives on

            async def ask():
                async with ellm.AsyncClient(daemon.socket, wait=30) as client:
                    others = [asyncio.create_task(client.generate("Tom", **LONG)) for _ in range(12)]
                    i = 0
                    try:
                        async for _ in client.generate_stream("Once", **LONG):
                            if i == 0:
                                self.kill(daemon)
                            i += 1
                    finally:
                        lost = await asyncio.gather(*others, return_exceptions=True)
                        self.assertEqual({type(error) for error in lost}, {ellm.Lost})
            with self.assertRaises(ellm.Lost) as raised:
                asyncio.run(ask())
            self.assertTrue(raised.exception.request_sent)
            client.close()

    def test_a_stopping_daemon_refuses_and_the_next_one_answers(self):
        with tempfile.TemporaryDirectory(prefix="ellm") as directory:
            daemon = self.start(directory)
            client = ellm.Client(daemon.socket, wait=30)
            stream = client.generate_stream("Once", **LONG)
            pieces = iter(stream)
            next(pieces)
            daemon.process.terminate()
            while os.path.exists(daemon.socket):                # it drains
                time.sleep(0.001)
            again = threading.Timer(0.1, lambda: started.append(self.start(directory)))
            started = []
            again.start()
            client.tokenize("x")                                # refused by the old one
            status = client.status()
            for _ in pieces:
                pass
            again.join()
            self.assertEqual(status.pid, started[0].process.pid)
            self.assertEqual(stream.completion.finish_reason, ellm.FinishReason.LENGTH)
            daemon.stop()
            started[0].stop()
            client.close()


if __name__ == "__main__":
    unittest.main()
