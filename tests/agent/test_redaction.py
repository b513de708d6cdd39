"""Secrets are not sent. They are recognised by name, by form, and as values of variables with a secret's name. Other
settings with words such as key, token and pass are shown."""

from __future__ import annotations

import json
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.process.redaction import HIDDEN, Secrets
from vramscope.process.secret_names import secrecy


def words(text: str) -> list[str]:
    return text.split()


SECRET_NAMES = words("""
api_key apikey apiKey API_KEY X-Api-Key openai_api_key OPENAI_API_KEY wandb.key WANDB_API_KEY wandb_key key wandbKey hf_token
hfToken HF_TOKEN HFToken hftoken token my_token auth_token access_token use_auth_token push_to_hub_token refresh_token bot_token
bearer bearer_token password passwd db_password dbPassword dbpassword DB_PASS userpass pass pw pwd admin.pw mysql_pwd passphrase
secret client_secret clientSecret secret_key aws_secret_access_key AWS_ACCESS_KEY_ID private_key privateKey ssh_key
encryption_key signing_key credential credentials creds auth basic_auth http.auth proxy_auth authorization Authorization cookie
session_cookie jwt password2 token_value secrets.lr logging/wandb/api_key account_key storage_key license_key
""")
HARMLESS_NAMES = words("""
max_tokens num_tokens min_token max_new_tokens n_tokens tokens tokens_per_second token_dropout token_dim token_ids
token_type_ids num_token tokenizer tokenizer_name pad_token pad_token_id eos_token bos_token_id unk_token mask_token cls_token
sep_token image_token image_token_index decoder_start_token special_tokens additional_special_tokens loss_per_token subtoken
padToken keyboard monkey hotkey key_dim key_size keys num_keys num_key_value_heads key_value_states key_padding_mask qk_norm
query_key_scale label_key image_key text_key sort_key cache_key lr_key batch_key state_dict_key passes num_passes bypass
pass_through forward_pass n_pass author authors authoritative authentic encompass compass passage learning_rate api_url
secretary password_file token_path credentials_path api_key_env key_name secret_name SSH_AUTH_SOCK has_password no_auth
auth_mode keypoints turkey dw_pw pw_layers TOKENIZERS_PARALLELISM CUDA_VISIBLE_DEVICES XDG_SESSION_ID PYTHONPATH max_grad_norm
_commit_hash revision
""")


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_the_name_of_a_secret_is_known(name) -> None:
    shown = Secrets({})
    assert secrecy(name) is not None
    assert shown.configuration({name: "hunter2"}) == {name: HIDDEN}
    assert shown.configuration({name: None, "on": True}) == {name: None, "on": True}
    assert shown.command_line([f"--{name}=hunter2", f"--{name}", "hunter2"]) == [f"--{name}=***", f"--{name}", "***"]
    assert shown.hide(f'{{"{name}": "hunter2", "lr": 0.1}}') == f'{{"{name}": "***", "lr": 0.1}}'


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_the_name_of_a_hyperparameter_is_shown(name) -> None:
    shown = Secrets({})
    assert secrecy(name) is None
    assert shown.configuration({name: "hunter2"}) == {name: "hunter2"}
    line = [f"--{name}=hunter2", f"--{name}", "hunter2", f"{name}=7"]
    assert shown.command_line(line) == line
    text = f"{name}: hunter2, {name}='hunter2'"
    assert shown.hide(text) == text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", '{"api_key": "hunter2", "lr": 0.1}'],
        ["--config", "{'a': {'api_key': 'hunter2'}}"],
        ['--config={"api_key": "hunter2"}'],
        ["--config", "{api_key: hunter2}"],
        ["--config", '"{\\"api_key\\": \\"hunter2\\"}"'],
        ["--config", "wandb:\n  key: hunter2\n"],
        ["--config", "password: |\n  hunter2\n"],
        ["--pw=hunter2"],
        ["--key", "hunter2"],
        ["wandb.key=hunter2"],
        ["+wandb.key=hunter2"],
        ["--opts", "SOLVER.LR", "0.1", "WANDB.KEY", "hunter2"],
        ["-u", "me", "-p", "hunter2"],
        ["--api-keys", "hunter2", "hunter2", "--lr", "0.1"],
        ["--password", "-hunter2"],
        ["--header", "Authorization: Bearer hunter2"],
        ["--header", "Authorization: Basic bWU6aHVudGVyMg== hunter2"[:40]],
        ["--db", "postgresql+psycopg://me:hunter2@db/runs"],
        ["--url", "https://host/x?lr=1&token=hunter2"],
        ["--url", "https://host/blob?sv=1&sig=hunter2"],
        ["--command", "other --hf-token hunter2 --lr 1"],
        ["--settings", "Config(lr=0.1, api_key=SecretStr('hunter2'))"],
    ],
)
def test_a_secret_on_the_command_line_is_hidden(arguments) -> None:
    result = " ".join(Secrets({}).command_line(arguments))
    assert "hunter2" not in result and "bWU6aHVu" not in result
    assert HIDDEN in result


def test_other_arguments_are_shown_unchanged() -> None:
    line = words(
        "-p 8080 -p src/data --lr 0.1 --key 3 --max-tokens 512 --pad-token <pad> --mode token --token-dropout=0.1 "
        "--use-auth-token true --sort-key length model=gpt2 data.batch=4 --config {lr:0.1} http://127.0.0.1:8265/runs/a?points=3 "
        "--revision 0123456789abcdef0123456789abcdef01234567 --model org/name@0123456789abcdef0123456789abcdef01234567 "
        "--cache /c/snapshots/0123456789abcdef0123456789abcdef01234567/model.bin --betas 0.9,0.99 --date 2026-01-02T03:04:05"
    )
    assert Secrets({}).command_line(line) == line


def test_a_configuration_is_searched_through_lists_and_maps() -> None:
    configuration = Secrets({}).configuration(
        {
            "cb": [{"api_key": "hunter2", "lr": 0.1}],
            "key": "hunter2",
            "deep": {"er": [[{"auth": {"user": "me", "word": "hunter2"}}]]},
            "credentials": {"a": "hunter2", "b": 3},
            "pair": [("api_key", "hunter2")],
            "env": [{"name": "HF_TOKEN", "value": "hunter2"}, {"name": "LR", "value": "0.1"}],
            "args": ["--lr", "0.1", "--token", "hunter2"],
            "token": {"dropout": 0.1, "dim": 8},
            "betas": (0.9, 0.95),
            "layers": [1, 2],
            "n": {"password": 1234},
            "model": {"_commit_hash": "0123456789abcdef0123456789abcdef01234567"},
        }
    )
    assert "hunter2" not in repr(configuration)
    assert configuration == {
        "cb": "[{'api_key': '***', 'lr': 0.1}]",
        "key": "***",
        "deep.er": "[[{'auth': ***}]]",
        "credentials": "***",
        "pair": "[('api_key', '***')]",
        "env": "[{'name': 'HF_TOKEN', 'value': '***'}, {'name': 'LR', 'value': '0.1'}]",
        "args": "['--lr', '0.1', '--token', '***']",
        "token.dropout": 0.1,
        "token.dim": 8,
        "betas": "(0.9, 0.95)",
        "layers": "[1, 2]",
        "n.password": "***",
        "model._commit_hash": "0123456789abcdef0123456789abcdef01234567",
    }


def test_a_recursive_or_huge_configuration_is_bounded() -> None:
    round_and_round: dict[str, object] = {"lr": 0.1, "many": list(range(1_000_000))}
    round_and_round["me"] = [round_and_round]
    round_and_round["again"] = round_and_round
    began = time.perf_counter()
    configuration = Secrets({}).configuration(round_and_round)
    assert configuration["lr"] == 0.1 and len(configuration["many"]) == 1000  # type: ignore[arg-type]
    assert time.perf_counter() - began < 5


ENVIRONMENT = {
    "HF_TOKEN": "correct-horse",
    "DB_PASSWORD": "battery&staple é",
    "DATABASE_URL": "postgres://me:tr0ub4dor@db/x",
    "PWD": "/home/somebody",
    "SSH_AUTH_SOCK": "/tmp/agent.sock",
    "SHORT_TOKEN": "ab12",
    "MAX_TOKENS": "12345678",
    "USE_TOKEN": "disabled",
}


@pytest.mark.parametrize("secret", ["correct-horse", "battery&staple é", "tr0ub4dor"])
def test_a_secret_variables_value_is_hidden_everywhere(secret) -> None:
    secrets = Secrets(ENVIRONMENT)
    seen = [
        *secrets.command_line([secret, f"--note=({secret})", json.dumps({"a": secret}), repr([secret])]),
        *map(str, secrets.configuration({"lr": secret, "a": {"b": [f"x{secret}y"]}, f"n{secret}": 1}).items()),
        secrets.hide(f"401: {secret} was refused"),
    ]
    assert all(HIDDEN in text for text in seen)
    assert not any(secret in text or "battery" in text for text in seen)


def test_other_environment_values_are_shown() -> None:
    line = ["/home/somebody/train.py", "/tmp/agent.sock", "ab12", "12345678", "disabled"]
    assert Secrets(ENVIRONMENT).command_line(line) == line


def test_a_known_secret_is_hidden_in_later_texts() -> None:
    environ = {"A": "b"}
    secrets = Secrets(environ, known=["the-token-of-attach", None])
    secrets.command_line(["--pw", "correct-horse"])
    secrets.configuration({"wandb": {"key": "battery2staple"}})
    environ["LATE_TOKEN"] = "set-after-attach"
    assert secrets.hide("the-token-of-attach correct-horse battery2staple set-after-attach") == "*** *** *** ***"
    del environ["LATE_TOKEN"]
    assert secrets.hide("refused: set-after-attach") == "refused: ***"
    assert secrets.hide("a line that was cut within the-token-of-att…") == "a line that was cut within ***…"


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnopqrstuvwxyz",
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrst1234",
        "github_pat_abcdefghijklmnopqrst1234",
        "glpat-abcdefghijklmnop",
        "xoxb-1234567890-abc",
        "AKIAABCDEFGHIJKLMNOP",
        "AIzaabcdefghijklmnopqrstuvwxyz0123456",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdef",
        "0123456789abcdef0123456789abcdef01234567",
        "vrs_abcdefghijklmnopqrst",
        "hooks.slack.com/services/T0/B0/abc",
        "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----",
    ],
)
def test_a_secret_of_a_known_form_needs_no_name(secret) -> None:
    secrets = Secrets({})
    assert secrets.hide(f"it said: {secret}.") in ("it said: ***.", "it said: ***")
    assert secret not in repr(secrets.configuration({"x": [secret], secret: 1}))
    assert secrets.hide("Bearer abcdefgh1234") == "Bearer ***"
    assert secrets.hide("a bearer of good news") == "a bearer of good news"


def test_an_error_stays_readable() -> None:
    for text in (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.12 GiB is free.",
        "Missing key(s) in state_dict: 'head.weight', 'head.bias'.",
        "size mismatch for token_embedding.weight: copying a param with shape torch.Size([8, 4])",
        "expected 3 tokens per step, got: 5 (max_tokens=7)",
        "the argument --token is required",
    ):
        assert Secrets({}).hide(text) == text


# -- no secret that is planted survives --------------------------------------------------------------------------------

# (Words of its own, so that it cannot stand in what surrounds it by chance.)
PLANTED = st.text("QXZqxz0123456789-_/+=.!", min_size=8, max_size=40).filter(
    lambda text: not text.startswith("-") and any(c in "QXZqxz" for c in text)
)
NAMES = st.sampled_from(SECRET_NAMES)
PLAIN = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text("abc {}[]'\",:=", max_size=12))
WORDS = st.sampled_from(["lr", "model", "data", "optimizer", "max_tokens", "n", "state"])


@st.composite
def planted_config(draw, depth: int = 0):
    """Build a setting with a secret's name, somewhere in maps and lists."""
    secret, name = draw(PLANTED), draw(NAMES)
    tree: object = {**draw(st.dictionaries(WORDS, PLAIN, max_size=3)), name: secret}
    for _ in range(draw(st.integers(0, 5))):
        other = draw(st.lists(PLAIN, max_size=2))
        tree = (
            [*other, tree]
            if draw(st.booleans())
            else {**draw(st.dictionaries(WORDS, PLAIN, max_size=2)), draw(WORDS): tree}
        )
    return secret, tree if isinstance(tree, dict) else {draw(WORDS): tree}


@given(planted_config())
@settings(max_examples=300, deadline=None)
def test_no_secret_survives_in_a_configuration(planted) -> None:
    secret, tree = planted
    assert secret not in repr(Secrets({}).configuration(tree))


@given(
    planted_config(),
    st.sampled_from(["json", "indented", "repr", "yaml", "flow"]),
    st.sampled_from(["--config", "--config=", "c=", ""]),
)
@settings(max_examples=300, deadline=None)
def test_no_secret_survives_in_a_configuration_that_is_an_argument(planted, kind, before) -> None:
    secret, tree = planted
    text = {
        "json": json.dumps,
        "indented": lambda tree: json.dumps(tree, indent=1),
        "repr": repr,
        "yaml": yaml.safe_dump,
        "flow": lambda tree: yaml.safe_dump(tree, default_flow_style=True),
    }[kind](tree)
    arguments = ["train.py", before, text] if not before.endswith("=") else ["train.py", before + text]
    secrets = Secrets({})
    assert secret not in " ".join(secrets.command_line(arguments))
    assert secret not in secrets.hide(f"cannot read {text}")


@given(
    NAMES,
    PLANTED,
    st.sampled_from(["--{}={}", "--{} {}", "-{}={}", "{}={}", "+{}={}"]),
    st.lists(st.sampled_from(["--lr", "0.1", "model=gpt2", "-v", "train", "--max-tokens=3"]), max_size=4),
    st.integers(0, 4),
)
@settings(max_examples=300, deadline=None)
def test_no_secret_survives_on_a_command_line(name, secret, form, others, at) -> None:
    line = [*others[:at], *form.format(name, secret).split(" "), *others[at:]]
    assert secret not in " ".join(Secrets({}).command_line(line))


@given(PLANTED, st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_no_secret_of_the_environment_survives_in_any_text(secret, before, behind) -> None:
    secrets = Secrets({"SERVICE_TOKEN": secret})
    for text in (before + secret + behind, json.dumps(before + secret + behind), repr([before, secret])):
        assert secret not in secrets.hide(text)


def test_a_megabyte_of_text_is_read_quickly() -> None:
    """What runs when a training dies must not keep it from dying."""
    secrets = Secrets(ENVIRONMENT)
    for text in (
        "a" * 2**20,
        "key:" * 2**18,
        "{" * 2**20,
        "token=[" * 2**17,
        "a-" * 2**19,
        "://" * 2**18,
        "--a " * 2**18,
        "'" * 2**20,
    ):
        began = time.perf_counter()
        secrets.hide(text)
        assert time.perf_counter() - began < 3, text[:10]


def test_a_variable_whose_bytes_are_no_text_is_a_secret_as_any() -> None:
    """As the system gives them where its encoding is another."""
    known = Secrets({"DB_PASSWORD": "gr\udcf6\udcdfer geheim\udcff", "API_KEY": "\ud800" * 9})
    assert ascii(known.hide("with gr\udcf6\udcdfer geheim\udcff in it")) == ascii(f"with {HIDDEN} in it")
