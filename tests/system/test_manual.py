# SPDX-License-Identifier: Apache-2.0
"""hotset(8) and README name what the program has: every option, every field of `status --json`, every counter."""

import os
import re
import shutil
import subprocess

import pytest

from harness import BUILD, REPO, hotset

PAGE = BUILD / "man" / "hotset.8"


def help_options():
    """{option: its line in `hotset mount --help`, without the padding}; the line is "name=VALUE doc (default x)"."""
    listed = hotset("mount", "--help").stdout.split("\nOptions:\n")[1].split("\n\n")[0]
    found = {}
    for line in listed.splitlines():
        names, doc = re.fullmatch(r"  (\S+=\S+|[a-z]+(?:, [a-z]+)*) +(.*)", line).groups()
        for name in names.split("=")[0].split(", "):
            found[name] = f"{names} {doc}"
    assert "cache" in found and "nofail" in found and len(found) >= 18
    return found


def plain(roff):
    """A line of the page without fonts, quotes and escapes."""
    return re.sub(r"\\f.|\"", "", roff).replace("\\-", "-").replace("\\ ", " ")


def tagged(*headings):
    """The names that the page has an entry (.TP) for, below this .SH or .SH and .SS."""
    page = PAGE.read_text()
    for macro, heading in zip([".SH", ".SS"], headings):
        page = page.split(f"\n{macro} {heading}\n", 1)[1]
        page = re.split(r"\n\.SH " if macro == ".SH" else r"\n\.S[HS] ", page)[0]
    tags = re.findall(r"^\.TP\n(?:\.[A-Z]+ )?(.*)", page, re.M)
    return [name for tag in tags for name in re.split(r"[ ,]+", plain(tag).split("=")[0].strip())]


def readme_cells(heading):
    """The first cells of the table rows between this heading of README and the next."""
    section = (REPO / "README.md").read_text().split(f"\n## {heading}", 1)[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line) for line in section.splitlines() if line.startswith("|")]
    return [row[1].replace("\\|", "|") for row in rows]


def rendered():
    """The page as text in one line, without hyphenation."""
    if not shutil.which("groff"):
        pytest.skip("no groff")
    text = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-rHY=0", "-rLL=900n", PAGE], check=True,
                          capture_output=True, timeout=30).stdout.decode("ascii")
    return " ".join(text.split())


def man(*argv):
    """man(1), rendering; its warnings."""
    environment = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MANROFFSEQ": ""}
    done = subprocess.run(["man", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, timeout=60)
    if done.returncode == 0 and b"hotset" not in done.stdout:
        pytest.skip("man does not render here")
    assert done.returncode == 0, done
    return done.stderr.decode()


def test_renders_without_warnings_by_man():
    if not shutil.which("man") or not shutil.which("groff"):
        pytest.skip("no man or no groff")
    assert man("--warnings", "-E", "UTF-8", "-l", PAGE) == ""


@pytest.mark.parametrize("device", ["utf8", "ascii"])
def test_renders_without_warnings_by_groff(device):
    if not shutil.which("groff"):
        pytest.skip("no groff")
    done = subprocess.run(["groff", "-man", "-ww", "-z", f"-T{device}", PAGE], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_is_left_of_the_template():
    page = PAGE.read_text()
    assert not re.search(r"@[A-Z]+@", page)
    assert hotset("--version").stdout.strip() in page
    for line in page.splitlines():
        assert not line.startswith("'") and re.match(r"\.(?:[A-Za-z]+(?: |$)|\\\")|[^.]", line), line


def test_the_page_has_every_option_once():
    assert sorted(tagged("MOUNT OPTIONS")) == sorted(help_options())


def test_the_page_says_of_an_option_what_help_says():
    text = rendered()
    for line in help_options().values():
        assert line in text, line


def test_the_page_has_every_field_and_counter_once(hot, one_file):
    with hot(one_file) as m:
        status = m.status()
    assert sorted(tagged("STATUS", "Fields")) == sorted(status)
    assert sorted(tagged("STATUS", "Counters")) == sorted(status["counters"])


def test_the_page_says_of_a_counter_what_the_table_says():
    text = rendered()
    table = re.findall(r'^COUNTER\((\w+), "(.*)"\)$', (REPO / "src/cache/counters.def").read_text(), re.M)
    assert len(table) > 20
    for name, doc in table:
        assert f"{name} {doc}" in text


def test_readme_has_every_option_with_its_values():
    words = [w for cell in readme_cells("Options of") for w in re.findall(r"`([^`]+)`", cell)]
    options = help_options()
    assert sorted(w.split("=")[0] for w in words) == sorted(options)
    for word in words:
        assert "=" not in word or options[word.split("=")[0]].startswith(word + " "), word


def test_readme_has_every_counter_once(hot, one_file):
    names = [n for cell in readme_cells("`hotset status") for n in re.findall(r"`(\w+)`", cell)]
    with hot(one_file) as m:
        counters = m.counters()
    assert sorted(n for n in names if n in counters) == sorted(counters)
