"""Chats over the wire: the template's rendering, own ids in later turns, and the errors of templates."""
import os
import tempfile
import unittest

from gguf import with_string
from harness import STORIES, Daemon, needs_model
from protocol import *

TEMPLATE = """{% for m in messages -%}
{% if m.role == 'robot' %}{{ raise_exception('there are no robots here') }}{% endif -%}
{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


@needs_model
class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        models = {}
        for name, template in (("talks", TEMPLATE), ("broken", "{% for x in %}"), ("fails", "line one\n{{ 1 + 'x' }}")):
            models[name] = os.path.join(cls.folder.name, name + ".gguf")
            with_string(STORIES, models[name], "tokenizer.chat_template", template)
        cls.daemon = Daemon(models=models, options=["--model", "talks"])

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()
        cls.folder.cleanup()

    def setUp(self):
        self.connection = self.daemon.connect()
        self.addCleanup(self.connection.close)

    def chat(self, messages, model="", tools="", variables="", **options):
        return self.connection.finish(self.connection.begin(CHAT, model, messages, tools, variables, sampling(**options)))

    def fails(self, code, *parts, **request):
        with self.assertRaises(Failed) as failed:
            self.chat(**{"messages": [["user", "x"]], **request})
        self.assertEqual(failed.exception.code, code, failed.exception.message)
        for part in parts:
            self.assertIn(part, failed.exception.message)

    def test_a_chat_is_its_rendering_completed(self):
        answer = self.chat([["system", "Tell stories."], ["user", "Hello"]], max_tokens=20)
        prompt = "system: Tell stories.\nuser: Hello\nassistant:"
        rendered = self.connection.reply(RENDER_TEMPLATE, "", '{"messages": [{"role": "system", "content": "Tell stories."}, '
                                         '{"role": "user", "content": "Hello"}], "add_generation_prompt": true}')[2]
        self.assertEqual(rendered, prompt)
        self.assertEqual(answer.tokens, self.connection.generate(prompt, max_tokens=20).tokens)
        self.assertEqual(self.connection.status()["models"][0]["chat"], True)

    def test_own_ids_of_an_earlier_turn(self):
        first = self.chat([["user", "Hello"]], max_tokens=12, ignore_eos=True)
        turns = [["user", "Hello"], ["assistant", first.text, first.tokens], ["user", "More"]]
        # This template puts a space in front of the text, which the tokenizer cannot tell from its own: whatever is used,
        # the prompt must say the same as without ids.
        with_ids = self.chat(turns, max_tokens=12)
        turns[1] = turns[1][:2]
        without = self.chat(turns, max_tokens=12)
        self.assertGreater(with_ids.usage[0], first.usage[0])
        self.assertAlmostEqual(with_ids.usage[0], without.usage[0], delta=3)
        turns[1] = ["assistant", first.text, first.tokens[:-1]]             # not this text: ignored
        self.assertEqual(self.chat(turns, max_tokens=12).tokens, without.tokens)

    def test_variables_and_extra(self):
        answer = self.chat([["user", "x", [], '{"content": "Once upon"}']], variables='{"add_generation_prompt": false}',
                           max_tokens=8)
        self.assertEqual(answer.tokens, self.connection.generate("user: Once upon\n", max_tokens=8).tokens)

    def test_errors_of_templates(self):
        self.fails(TEMPLATE_FAILED, "'talks'", "there are no robots here", messages=[["robot", "x"]])
        self.fails(TEMPLATE_FAILED, "'broken'", "line 1", model="broken")
        self.fails(TEMPLATE_FAILED, "'fails'", "line 2", model="fails")
        self.assertEqual(len(self.connection.generate("Once", model="fails", max_tokens=3).tokens), 3)   # without it
        with self.assertRaises(Failed) as failed:
            self.connection.reply(RENDER_TEMPLATE, "fails", "{}")
        self.assertEqual(failed.exception.code, TEMPLATE_FAILED)

    def test_bad_chats(self):
        self.fails(BAD_REQUEST, "messages: there are none", messages=[])
        self.fails(BAD_REQUEST, "tools: invalid JSON", tools="[")
        self.fails(BAD_REQUEST, "tools: expected a JSON array", tools="{}")
        self.fails(BAD_REQUEST, "variables: expected a JSON object", variables="[]")
        self.fails(BAD_REQUEST, "messages[0].extra", messages=[["user", "x", [], "5"]])
        self.fails(BAD_REQUEST, "variables: invalid JSON", variables="[" * 100_000)
        self.fails(TOO_LARGE, "context of 2048", messages=[["user", "a dog " * 3000]])


if __name__ == "__main__":
    unittest.main()
