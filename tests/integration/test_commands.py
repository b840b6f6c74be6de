"""The commands `pasta` and `pasta-preload`: PASTA's Python is isolated from the environment of the
profiled program, which gets it unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shim.build import Compiler, commands
from tests.support.places import ROOT
from tests.support.preload import TIMEOUT

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
#: Replaces the installed pasta_entry.py.
ENTRY = """
import os, sys
def pasta(): print("pasta", sys.flags.isolated, sys.argv[1:])
def pasta_preload(): print("pasta-preload", sys.flags.isolated, sys.argv[1:], sorted(os.environ))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("compiled")
    commands(Compiler.find(), directory)
    return directory / "scripts"


class Installation:
    """Commands as installed, with an entry module that prints how it was called."""

    def __init__(self, prefix: Path, compiled: Path, modules: str) -> None:
        self.bin = prefix / "bin"
        shutil.copytree(compiled, self.bin)
        (prefix / modules).mkdir(parents=True, exist_ok=True)
        (prefix / modules / "pasta_entry.py").write_text(ENTRY)

    def script(self, text: str) -> None:
        """Writes the script with the Python in its first line: {python} is one without PASTA."""
        python = self.bin.parent / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        (self.bin / "pasta-python").write_text(text.replace("{python}", str(python)))

    def run(self, name: str = "pasta", *arguments: str, **environment: str):
        return subprocess.run(
            [self.bin / name, *arguments], env=environment, capture_output=True, text=True
        )


@pytest.mark.parametrize(
    ("modules", "line"),
    [
        (SITE, "#!{python}\n"),  # pip install --user, --prefix
        (SITE, "#! {python} -s\n"),  # distributions
        (".", "#!{python}\n"),  # pip install --target
        (SITE, "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n"),  # pip, long paths
        (SITE, "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"),  # pip, spaces
        (SITE, "#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\n"),  # uv
    ],
)
def test_finds_python_and_modules(tmp_path, compiled, modules: str, line: str) -> None:
    installed = Installation(tmp_path / "prefix", compiled, modules)
    installed.script(line)
    done = installed.run("pasta", "a b", "-x", PYTHONHOME="/none", PYTHONPATH="/none")
    assert (done.stdout, done.stderr) == ("pasta 1 ['a b', '-x']\n", "")


def test_finds_the_python_of_the_virtual_environment(tmp_path, compiled) -> None:
    """Also through a link, as created by pipx and uv, and with a long path with spaces."""
    prefix = tmp_path / ("a long path " * 15)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    (prefix / "bin").rename(prefix / "its bin")
    installed = Installation(prefix, compiled, SITE)
    for each in (prefix / "its bin").iterdir():
        each.rename(installed.bin / each.name)
    link = tmp_path / "elsewhere"
    link.symlink_to(installed.bin / "pasta")
    for command in (installed.bin / "pasta", link):
        done = subprocess.run([command], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("pasta 1 []\n", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "pasta-python: cannot be read, or names no Python: pip install --force-reinstall"),
        ("#!/bin/sh\nexec python3\n", "pasta-python: cannot be read, or names no Python"),
        ("#!/no/python\n", "/no/python: No such file or directory: install PASTA again, its Pyth"),
    ],
)
def test_missing_python_is_reported_in_one_line(tmp_path, compiled, line, message) -> None:
    installed = Installation(tmp_path, compiled, ".")
    if line:
        installed.script(line)
    done = installed.run()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pasta: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_modules_are_reported_in_one_line(tmp_path, compiled) -> None:
    installed = Installation(tmp_path, compiled, "elsewhere")
    installed.script("#!{python}\n")
    done = installed.run()
    assert done.returncode == 1
    assert done.stderr.startswith("pasta: PASTA is not installed in ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Modules on a program's PYTHONPATH that shadow PASTA's dependencies; each reports its
    import."""
    directory = tmp_path / "broken"
    directory.mkdir()
    for name in ("numpy", "json", "typing", "pyarrow", "argparse", "sitecustomize"):
        (directory / f"{name}.py").write_text(
            f"print('wrong {name}', flush=True)\nraise KeyError\n"
        )
    (directory / "pasta").mkdir()
    (directory / "pasta" / "__init__.py").write_text("print('wrong pasta')\nraise KeyError\n")
    (directory / "startup.py").write_text("print('startup')")
    return directory


def python_variables(broken: Path) -> dict[str, str]:
    return {
        "PYTHONHOME": "/nonexistent",
        "PYTHONPATH": str(broken),
        "PYTHONSTARTUP": str(broken / "startup.py"),
        "PYTHONSAFEPATH": "1",
        "PYTHONINSPECT": "1",
        "PYTHONWARNINGS": "error",
        "PYTHONOPTIMIZE": "2",
        "PYTHONPROFILEIMPORTTIME": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONVERBOSE": "1",
    }


def test_run_is_complete_with_any_python_variables(pasta_preload, compile_c, broken: Path) -> None:
    """Launcher and collector; a foreign package `pasta` is in the current directory, too."""
    shutil.copytree(broken / "pasta", pasta_preload.directory / "pasta")
    program = compile_c("int main(void) { launch(3); return 7; }")
    done = pasta_preload(program, environment=python_variables(broken))
    assert (done.exit_status, done.stdout, done.target_stderr) == (7, "", "")
    assert done.run.launches == 3


@pytest.mark.main
def test_verbs_ignore_python_variables(pasta, broken: Path) -> None:
    done = pasta("tools", environment=python_variables(broken))
    assert (done.returncode, done.stderr) == (0, "")
    assert "kernel_freq" in done.stdout


ENVIRONMENT = r"""
    extern char **environ;
    int main(void) {
        for (char **each = environ; *each; each++) fwrite(*each, 1, strlen(*each) + 1, stdout);
        return 0;
    }
"""
#: Variables that PASTA sets, as documented.
OURS = (b"LD_PRELOAD", b"CUDA_INJECTION64_PATH", b"NVTX_INJECTION64_PATH",
        b"REFACC_INJECTION_PATH", b"PASTA_SHIM")  # fmt: skip


@pytest.mark.parametrize("language", [{}, {"LC_CTYPE": "C"}, {"LC_ALL": "C"}])
def test_program_environment_is_identical(
    compile_c, tmp_path, compiled, broken: Path, language: dict[str, str]
) -> None:
    """In the C locale Python itself sets LC_CTYPE; shells drop names that are not identifiers."""
    program = compile_c(ENVIRONMENT)
    given = {
        b"HOME": b"/root", b"BASH_FUNC_module%%": b"() {  eval 1\n}", b"a.b": b"2",
        b"BYTES": b"\xff\xfe", b"EMPTY": b"", b"SHLVL": b"7", b"_": b"x", b"PWD": b"/elsewhere",
        **{name.encode(): value.encode() for name, value in python_variables(broken).items()},
        **{name.encode(): value.encode() for name, value in language.items()},
    }  # fmt: skip
    installed = Installation(tmp_path / "installed", compiled, ".")
    (installed.bin / "pasta-python").write_text(f"#!{sys.executable}\n")
    path = [str(ROOT), *(each for each in sys.path if os.path.isabs(each))]
    (tmp_path / "installed" / "pasta_entry.py").write_text(
        f"import sys\nsys.path[:0] = {path}\ndel sys.modules['pasta_entry']\n"
        "from pasta_entry import pasta_preload\n"
    )
    done = subprocess.run(
        [installed.bin / "pasta-preload", program],
        env=given, capture_output=True, timeout=TIMEOUT, cwd=tmp_path,
    )  # fmt: skip
    assert done.stderr == b""
    entries = [each.partition(b"=") for each in done.stdout.rstrip(b"\0").split(b"\0")]
    assert [(name, value) for name, _, value in entries if name not in OURS] == list(given.items())


def test_python_program_keeps_its_own_path(pasta_preload, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "its_module.py").write_text("print('its own')\n")
    environment = {"PYTHONPATH": str(tmp_path / "modules")}
    done = pasta_preload(sys.executable, "-c", "import its_module", environment=environment)
    assert (done.exit_status, done.stdout, done.stderr) == (0, "its own\n", "")


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [("google_pasta-0.2.0", "google-pasta (TensorFlow brings it)"), (None, "another project")],
)
def test_replacing_package_is_named(tmp_path, metadata, owner) -> None:
    """In PASTA's own environment; it is not imported."""
    (tmp_path / "pasta").mkdir()
    foreign = tmp_path / "pasta" / "__init__.py"
    foreign.write_text("raise SystemExit('imported')\n")
    if metadata:
        (tmp_path / f"{metadata}.dist-info").mkdir()
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
    done = subprocess.run(
        [sys.executable, "-I", "-c", code + "from pasta_entry import pasta_preload as m; m()"],
        capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"pasta: {foreign} belongs to {owner} and takes PASTA's import")
    assert "pipx install . in its checkout" in done.stderr
    assert done.stderr.count("\n") == 1
