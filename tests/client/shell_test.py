"""ellm in a shell: completions, manual pages, pipes: shell_test.py ELLM FAKE_ELLMD SHELL_FILES BUILD_FOLDER."""
import glob
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from fake_daemon import WithFakeDaemon

ELLM, FAKE, SHELL, BUILD = sys.argv[1:5]
del sys.argv[1:5]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class ShellTest(WithFakeDaemon):
    FAKE, LOCALE = FAKE, "C.UTF-8"

    def output(self, *command, **more):
        done = subprocess.run(command, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, env=self.environment(**more))
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(done.stderr, b"", done)
        return done.stdout.decode()

    # ---- what --help says stands everywhere

    def commands(self):
        listed = self.output(ELLM, "--help").split("Commands:\n")[1].split("\n\n")[0]
        return re.findall(r"^  (\S+)", listed, re.M)

    def options(self, command):
        """The names of options, as --help prints them."""
        text = self.output(ELLM, command, "--help")
        lines = [line for line in text.split("Examples:")[0].split("\n") if re.match(r"  +-", line)]
        names = [name for line in lines for name in re.findall(r"(?:^ +|,)(--?[A-Za-z][\w-]*)", line)]
        self.assertIn("--help", names, text)
        return names

    def test_every_command_and_option_is_everywhere(self):
        bash, zsh, fish = (read(SHELL + path) for path in ("/bash/ellm", "/zsh/_ellm", "/fish/ellm.fish"))
        overview = read(SHELL + "/man/man1/ellm.1").replace("\\-", "-")
        commands = self.commands()
        self.assertGreaterEqual(len(commands), 12)
        for command in commands:
            page = read(f"{SHELL}/man/man1/ellm-{command}.1").replace("\\-", "-")
            self.assertIn(f"\\fBellm {command}\\fR", overview)
            offered = re.search(rf"^      {command}\) (.*) ;;$", bash, re.M).group(1)
            specs = re.search(rf"^        {command}\)\n(.*?);;", zsh, re.M | re.S).group(1)
            for name in self.options(command):
                self.assertIn(f"\\fB{name}\\fR", page)
                self.assertRegex(offered, rf"['n]{name}['\\]")
                self.assertRegex(specs, rf"[)*]{name}=?\[")
                flag = " -l " + name[2:] if name.startswith("--") else " -s " + name[1:]
                self.assertRegex(fish, rf"(?m)^complete -c ellm -n '__ellm_on {command}'.*{flag}( |$)")
        self.assertEqual(sorted(os.path.basename(path) for path in glob.glob(SHELL + "/man/man1/*")),
                         sorted(["ellm.1"] + [f"ellm-{command}.1" for command in commands]))

    def test_values_and_examples_of_help_are_in_the_pages(self):
        self.assertIn("\\fB\\-n\\fR, \\fB\\-\\-samples\\fR \\fIN\\fR", read(SHELL + "/man/man1/ellm-run.1"))
        for command in self.commands():
            if "Examples:\n" not in self.output(ELLM, command, "--help"):
                continue
            example = self.output(ELLM, command, "--help").split("Examples:\n")[1].split("\n")[0].strip()
            page = re.sub(r"\\&", "", read(f"{SHELL}/man/man1/ellm-{command}.1"))
            for written, character in (("\\-", "-"), ("\\(aq", "'"), ("\\(ti", "~"), ("\\(rs", "\\"), ("\\(ha", "^")):
                page = page.replace(written, character)
            self.assertIn(example, page)

    # ---- manual pages

    def pages(self):
        pages = sorted(glob.glob(SHELL + "/man/man*/*"))
        self.assertIn(SHELL + "/man/man8/ellmd.8", pages)
        return pages

    def test_pages_parse_without_a_warning(self):
        checkers = [c for c in (["groff", "-ww", "-Kutf8", "-man", "-Tutf8", "-z"], ["mandoc", "-Tlint", "-Wwarning"],
                                ["man", "--warnings=w", "-l"]) if shutil.which(c[0])]
        if not checkers:
            self.skipTest("neither groff, mandoc nor man is here")
        for page in self.pages():
            for checker in checkers:
                done = subprocess.run(checker + [page], capture_output=True, timeout=60, stdin=subprocess.DEVNULL,
                                      env=self.environment(MANPAGER="cat", MANWIDTH="120"))
                self.assertEqual((done.returncode, done.stderr), (0, b""), done)
                if checker[0] == "mandoc":
                    self.assertEqual(done.stdout, b"")

    def test_a_page_reads_well(self):
        if not shutil.which("man"):
            self.skipTest("man is not here")
        text = self.output("man", "-l", SHELL + "/man/man1/ellm-run.1", MANPAGER="cat", MANWIDTH="200")
        text = re.sub(r".\x08|\x1b\[[\d;]*m", "", text)
        for part in ("ellm-run - answer a prompt", "ellm run [OPTION]... [PROMPT]", "-t, --temperature X",
                     'ellm run "Summarise in one sentence:" < report.txt', "the argument is the instruction and stdin the material"):
            self.assertIn(part, text)
        text = re.sub(r".\x08|\x1b\[[\d;]*m", "", self.output("man", "-l", SHELL + "/man/man1/ellm.1", MANPAGER="cat", MANWIDTH="200"))
        self.assertRegex(text, r"\n +64 +Wrong options or values\.")
        self.assertRegex(text, r"\n +NO_COLOR\n")

    # ---- completions

    def bash(self, *words, program=ELLM, **more):
        """What bash offers for the last of the words."""
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ellm; printf "%s\\n" "${COMPREPLY[@]}"'
        return self.output("bash", "-c", script, "bash", SHELL + "/bash/ellm", program, *words, **more).split("\n")[:-1]

    def test_bash_completes(self):
        self.assertEqual(sorted(self.bash("")), sorted(self.commands() + ["help"]))
        self.assertEqual(self.bash("ru"), ["run"])
        self.assertEqual(self.bash("help", "tok"), ["tokenize"])
        self.assertEqual(self.bash("--so"), ["--socket"])
        self.assertEqual(self.bash("run", "--mo"), ["--model"])
        self.assertEqual(sorted(set(self.bash("run", "-"))), sorted(self.options("run")))
        self.assertEqual(self.bash("run", "--nonsense"), [""])
        self.assertEqual(self.bash("run", "--", "--mo"), [""])              # a text that begins with a dash
        self.assertEqual(self.bash("run", "--stop", "ru"), [""])            # any text

    def test_bash_completes_names_of_models(self):
        self.assertEqual(self.bash("run", "--model", ""), ["tiny", "large"])
        self.assertEqual(self.bash("run", "-m", "l"), ["large"])
        self.assertEqual(self.bash("chat", "--model", "=", "t"), ["tiny"])  # as bash cuts --model=t
        self.assertEqual(self.bash("chat", "--model", "="), ["tiny", "large"])
        self.assertEqual(self.bash("inspect", "la"), ["large"])
        self.assertEqual(self.bash("--socket", self.socket, "inspect", "la"), ["large"])
        self.assertEqual(self.bash("pull", "qw"), ["qwen-0.5b", "qwen-1.5b"])

    def test_bash_survives_a_hostile_name(self):
        program = self.directory.name + "/hostile"
        with open(program, "w") as file:
            file.write("#!/bin/sh\necho 'a$(touch " + self.directory.name + "/touched)'\necho '*'\n")
        os.chmod(program, 0o755)
        self.assertEqual(len(self.bash("run", "--model", "", program=program)), 2)
        self.assertFalse(os.path.exists(self.directory.name + "/touched"))

    def test_bash_completes_files_and_choices(self):
        path = self.directory.name + "/t.jinja"
        open(path, "w").close()
        self.assertEqual(self.bash("template", "--template-file", path[:-3]), [path])
        self.assertEqual(self.bash("tokenize", "--model-file", path[:-3]), [path])
        self.assertEqual(self.bash("bench", "--kernels", "s"), ["scalar"])

    def typed_in_zsh(self, text):
        """What an interactive zsh shows when this is typed."""
        process, terminal = pty.fork()
        if process == 0:
            environment = self.environment(PATH=os.path.dirname(ELLM) + ":" + os.environ["PATH"])
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**environment, "TERM": "dumb"})
        shown = b""

        def read_until(mark):
            nonlocal shown
            while mark not in shown:
                ready, _, _ = select.select([terminal], [], [], 20)
                self.assertTrue(ready, shown)
                shown += os.read(terminal, 4096)

        setup = "PS1=; bindkey -e; fpath=(%s/zsh $fpath); autoload -U compinit; compinit -u -D; echo rea''dy\n" % SHELL
        os.write(terminal, setup.encode())
        read_until(b"ready\r\n")
        shown = b""
        os.write(terminal, (text + "\x01echo \x05 e''nd\n").encode())   # Ctrl-A, Ctrl-E: the line is not run but printed
        read_until(b"end\r\n")
        os.close(terminal)
        os.waitpid(process, 0)
        return shown.decode()

    def test_zsh_and_fish(self):
        tried = 0
        if shutil.which("zsh"):
            tried += 1
            self.output("zsh", "-n", SHELL + "/zsh/_ellm")
            self.assertIn("ellm run --model=", self.typed_in_zsh("ellm run --mod\t"))
            self.assertIn("ellm run --model=tiny", self.typed_in_zsh("ellm run --model=ti\t"))
            self.assertIn("ellm inspect large", self.typed_in_zsh("ellm inspect la\t"))
            self.assertIn("detokenize", self.typed_in_zsh("ellm det\t"))
        if shutil.which("fish"):
            tried += 1
            script = "set -x PATH %s $PATH; source %s/fish/ellm.fish; " % (os.path.dirname(ELLM), SHELL)
            self.assertRegex(self.output("fish", "-c", script + "complete -C 'ellm ru'"), r"\Arun\t")
            self.assertRegex(self.output("fish", "-c", script + "complete -C 'ellm run --mod'"), r"(?m)\A--model\t")
            offered = self.output("fish", "-c", script + "complete -C 'ellm run --model '")
            self.assertEqual([line.split("\t")[0] for line in offered.splitlines()], ["large", "tiny"])
        if not tried:
            self.skipTest("neither zsh nor fish is here")

    # ---- installed

    def test_they_are_installed(self):
        prefix = self.directory.name + "/installed"
        subprocess.run(["cmake", "--install", BUILD, "--component", "shell", "--prefix", prefix], check=True, capture_output=True, timeout=120)
        for path in ("share/man/man1/ellm.1", "share/man/man1/ellm-run.1", "share/man/man8/ellmd.8", "share/zsh/site-functions/_ellm",
                     "share/bash-completion/completions/ellm", "share/fish/vendor_completions.d/ellm.fish"):
            self.assertTrue(os.path.exists(prefix + "/" + path), path)

    # ---- pipes and terminals

    OUTPUTS = (["run", "much"], ["run", "--json", "hi"], ["chat", "--json"], ["models"], ["ps"], ["status", "--json"], ["tokenize", "x"],
               ["detokenize", "72"], ["template", "{}"], ["score", "abc"], ["inspect"], ["--help"], ["run", "--help"], ["pull", "--list"])

    def test_a_closed_pipe_ends_quietly(self):
        for command in self.OUTPUTS:
            reader, writer = os.pipe()
            os.close(reader)
            for restore in (True, False):                      # with and without SIGPIPE's default
                done = subprocess.run([ELLM, *command], input=b"hi\n", stdout=writer, stderr=subprocess.PIPE, timeout=30,
                                      env=self.environment(), restore_signals=restore)
                if restore:                                    # as cat
                    self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""), command)
                elif command[0] != "pull":                     # that one writes with stdio, which keeps quiet
                    self.assertEqual((done.returncode, done.stderr), (141, b""), command)
            os.close(writer)

    def test_json_is_one_object_a_line(self):
        for command in (["run", "x"], ["models"], ["ps"], ["status"], ["tokenize", "x\ny"], ["detokenize", "72", "10"], ["template", "{}"],
                        ["score", "abc"], ["inspect"]):
            text = self.output(ELLM, *command, "--json")
            self.assertEqual(text.count("\n"), 1, text)
            self.assertIsInstance(json.loads(text), dict)
        done = subprocess.run([ELLM, "chat", "--json"], input=b"one\ntwo\n", capture_output=True, timeout=30, env=self.environment())
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        answers = [json.loads(line) for line in done.stdout.decode().splitlines()]
        self.assertEqual(len(answers), 2)
        self.assertIn("user=<one> assistant=<" + answers[0]["text"], answers[1]["text"])

    def test_colours_only_where_they_are_wanted(self):
        self.assertIn("\x1b[2m", self.on_terminal())
        self.assertNotIn("\x1b", self.on_terminal(NO_COLOR="1"))
        self.assertNotIn("\x1b", self.on_terminal(TERM="dumb"))
        self.assertIn("\x1b[2m", self.on_terminal(NO_COLOR=""))
        done = subprocess.run([ELLM, "run", "-v", "hi"], capture_output=True, timeout=30, stdin=subprocess.DEVNULL, env=self.environment())
        self.assertNotIn(b"\x1b", done.stdout + done.stderr)

    def on_terminal(self, **more):
        """What a terminal sees of an answer and its statistics."""
        environment = self.environment()
        environment.update(more)
        pid, fd = pty.fork()
        if pid == 0:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.execve(ELLM, [ELLM, "run", "-v", "hi"], environment)
        seen = b""
        while select.select([fd], [], [], 15)[0]:
            try:
                piece = os.read(fd, 4096)
            except OSError:
                break
            seen += piece
        os.close(fd)
        os.waitpid(pid, 0)
        self.assertIn(b"prompt tokens", seen)
        return seen.decode()


if __name__ == "__main__":
    unittest.main()
