"""Reading the agent's settings, and the messages for invalid ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from vramscope.setting_values import default_spool_dir
from vramscope.settings import VARIABLES, Settings

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


def settings(environ: dict[str, str] | None = None, **given: object) -> Settings:
    return Settings.from_environment(environ or {}, **given)


def test_the_default_server_is_on_this_machine():
    assert settings().server == "http://127.0.0.1:8265"
    assert settings().interval_ms == 100
    assert settings().token is None
    assert not settings().disabled


def test_arguments_win_over_environment_and_defaults():
    environ = {"VRAMSCOPE_PROJECT": "from the environment", "VRAMSCOPE_INTERVAL_MS": "250"}
    assert settings(environ).project == "from the environment"
    assert settings(environ, project="given", interval_ms=None).project == "given"
    assert settings(environ, project="given", interval_ms=None).interval_ms == 250


def test_a_variable_that_is_set_but_empty_is_not_set():
    assert settings({"VRAMSCOPE_SERVER": "  ", "VRAMSCOPE_RUN_ID": ""}) == settings()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("VRAMSCOPE_SERVER", "127.0.0.1", "http://127.0.0.1:8265"),
        ("VRAMSCOPE_SERVER", "localhost:82650", "http://127.0.0.1:8265"),
        ("VRAMSCOPE_SERVER", "localhost:", "http://127.0.0.1:8265"),
        ("VRAMSCOPE_SERVER", "ftp://host", "http://"),
        ("VRAMSCOPE_SERVER", "http://host:99999", "http://"),
        ("VRAMSCOPE_SERVER", "http://user:word@host", "VRAMSCOPE_TOKEN"),
        ("VRAMSCOPE_SERVER", "http://host/a b", "http://"),
        ("VRAMSCOPE_INTERVAL_MS", "fast", "10 to 60000"),
        ("VRAMSCOPE_INTERVAL_MS", "0", "10 to 60000"),
        ("VRAMSCOPE_INTERVAL_MS", "1e3", "10 to 60000"),
        ("VRAMSCOPE_INTERVAL_MS", "٣٣٣", "10 to 60000"),
        ("VRAMSCOPE_RUN_ID", "My Run", "8 to 40 characters"),
        ("VRAMSCOPE_RUN_NAME", "n" * 201, "1 to 200"),
        ("VRAMSCOPE_PROJECT", "a\nb", "printable"),
        ("VRAMSCOPE_DISABLED", "maybe", "1 or 0"),
        ("VRAMSCOPE_PHASES", "often", "1, 0 or every"),
        ("VRAMSCOPE_DETAIL", "all", "auto, every or peaks"),
        ("VRAMSCOPE_SPOOL_BYTES", "lots", "256MiB"),
        ("VRAMSCOPE_SPOOL_BYTES", "12", "at least 1 MiB"),
        ("VRAMSCOPE_SPOOL_DIR", "a\0b", "folder"),
        ("VRAMSCOPE_SPOOL_DIR", "~nobody-of-that-name/x", "no user has this name"),
        ("VRAMSCOPE_CLOSE_TIMEOUT_S", "-1", "seconds from 0 to 60"),
        ("VRAMSCOPE_READ_TIMEOUT_S", "nan", "seconds from 0.1 to 300"),
    ],
)
def test_an_invalid_value_is_reported_with_what_is_expected(name, value, words):
    with pytest.raises(ValueError) as caught:
        settings({name: value})
    assert name in str(caught.value)
    assert repr(value)[:50] in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_argument_is_reported_under_its_own_name():
    with pytest.raises(ValueError, match="interval_ms: saw -5"):
        settings(interval_ms=-5)
    with pytest.raises(ValueError, match="colour"):
        settings(colour="red")


@pytest.mark.parametrize("tags", [5, b"ab", object()])
def test_invalid_tags_are_reported(tags):
    with pytest.raises(ValueError, match=r"tags: saw .* expected a list of tags, or text with commas between them"):
        settings(tags=tags)


def test_a_token_is_never_shown():
    secret = "abc-secret-xyz"
    assert secret not in repr(settings(token=secret))
    with pytest.raises(ValueError) as caught:
        settings({"VRAMSCOPE_TOKEN": f"{secret} {secret}"})
    assert secret not in str(caught.value)


def test_phases_are_read_mostly_never_or_in_every_step():
    assert [settings({"VRAMSCOPE_PHASES": one}).phases for one in ("1", "0", "Every")] == [True, False, "every"]
    assert settings(phases="every").phases == "every"


def test_sizes_may_have_units_and_tags_have_commas():
    assert settings({"VRAMSCOPE_SPOOL_BYTES": "2 GiB"}).spool_bytes == 2 * 1024**3
    assert settings({"VRAMSCOPE_TAGS": "a, b,,a"}).tags == ("a", "b")
    assert settings(tags=["x", "y, z"]).tags == ("x", "y, z")


def test_a_server_behind_a_path_loses_only_its_last_slash():
    assert settings(server="https://host/vramscope/").server == "https://host/vramscope"


@pytest.mark.parametrize(
    "address", ["localhost:8265", "127.0.0.1:8265", "gpu-3.lab:80", "[::1]:8265", "host:8265/vramscope"]
)
def test_a_host_and_a_port_are_meant_as_http(address):
    assert settings({"VRAMSCOPE_SERVER": f" {address}/ "}).server == f"http://{address}"


def test_an_invalid_server_or_token_does_not_stop_the_agent():
    given = {"VRAMSCOPE_SERVER": "ftp://host", "VRAMSCOPE_TOKEN": "a b", "VRAMSCOPE_PROJECT": "p"}
    read, wrong = Settings.for_training(given)
    assert (read.server, read.token, read.project) == ("", None, "p")
    assert (
        "VRAMSCOPE_SERVER: saw 'ftp://host'; expected an address" in wrong and "VRAMSCOPE_TOKEN: saw a value" in wrong
    )
    assert Settings.for_training({"VRAMSCOPE_PROJECT": "p"}) == (settings(project="p"), "")
    with pytest.raises(ValueError, match="VRAMSCOPE_INTERVAL_MS"):
        Settings.for_training({**given, "VRAMSCOPE_INTERVAL_MS": "fast"})


def test_the_default_spool_is_in_the_users_state_folder():
    assert default_spool_dir({"XDG_STATE_HOME": "/state"}) == Path("/state/vramscope/spool")
    assert default_spool_dir({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/vramscope/spool")
    assert default_spool_dir({"HOME": "/h"}) == Path("/h/.local/state/vramscope/spool")
    assert settings({"HOME": "/h"}).spool_dir == Path("/h/.local/state/vramscope/spool")
    assert settings({"VRAMSCOPE_SPOOL_DIR": "~/x"}).spool_dir == Path(os.path.expanduser("~/x"))


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().server = "http://elsewhere"  # type: ignore[misc]


def test_every_variable_is_in_the_docs():
    assert set(VARIABLES) == {field.name for field in dataclasses.fields(Settings)}
    text = DOCS.read_text()
    for variable in VARIABLES.values():
        default = variable.default_text if "`" in variable.default_text else f"`{variable.default_text}`"
        if variable.default_text.startswith(("made", "not set", "none")):
            default = variable.default_text
        line = f"| `{variable.name}` | {default} | {variable.meaning} |"
        assert line in text, f"docs/settings.md misses or changes this line:\n{line}"
    known = {variable.name for variable in VARIABLES.values()}
    agent_part = text.partition("## Agent")[2].partition("\n## ")[0]
    for word in agent_part.replace("`", " ").replace(",", " ").split():
        if word.startswith("VRAMSCOPE_"):
            assert word.rstrip(".;:") in known, f"docs/settings.md names {word}, which the agent does not read"


def test_detail_stands_for_other_settings_and_each_of_them_wins() -> None:
    assert settings({}).detail == "auto"
    assert settings({"VRAMSCOPE_DETAIL": "Every"}).phases == "every"
    peaks = settings({"VRAMSCOPE_DETAIL": "peaks", "VRAMSCOPE_LEAKS": "1"})
    assert (peaks.phases, peaks.windows, peaks.profile, peaks.techniques, peaks.loss) == (False,) * 5
    assert peaks.leaks is True
    assert Settings.from_environment({"VRAMSCOPE_DETAIL": "peaks"}, detail="auto").windows is True
