"""Decides which names belong to secrets: ``hf_token``, ``wandb.key``, ``dbPassword``; not ``max_tokens``, ``key_dim``,
``pad_token``.

A name is split into words (at ``_ . - /`` and before capitals). Some words mean a secret in any position. ``key``,
``token``, ``auth`` and ``pass`` do only at a name's end, and not after a word that belongs to a model.

"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Final, Literal

Secrecy = Literal["certain", "likely"]
"""Certainty that a value is a secret:

certain  any value is hidden
likely   texts are hidden; numbers, yes and no, and a tokenizer's ``<pad>`` are not
"""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ALWAYS: Final = _set(
    "password passwords passwd passphrase passcode secret secrets credential credentials cred creds cookie cookies jwt "
    "authorization"
)
_AT_THE_END: Final = _set("key token auth pass bearer pw pwd")
_OF_A_SERVICE: Final = _set(
    "api access secret private signing encryption decryption ssh rsa gpg pgp hmac account storage license subscription master "
    "auth oauth authentication session security refresh personal bearer csrf hub "
    "hf huggingface wandb openai anthropic cohere mistral gemini google gcp aws azure github gitlab gh neptune comet clearml "
    "mlflow kaggle slack discord telegram databricks replicate runpod ngc nvidia docker npm pypi redis minio db database mysql "
    "postgres smtp ldap admin root"
)
"""Words that leave no doubt before a key, a token, a pass or an auth, in the plural and inside a longer name too."""
_FUSED: Final = re.compile(
    rf"({'|'.join(sorted(_OF_A_SERVICE, key=len, reverse=True))}|my|user)(keys?|tokens?|pass|auth)"
    r"|(\w*?)(passwords?|passwd|passphrase|credentials?|secrets?)"
)
_NOT_ITSELF: Final = _set(
    "path paths file files filename dir directory folder sock socket env var variable name names type types length len count size "
    "dim dims policy format version required enabled expiry expires ttl timeout manager store backend provider"
)
"""Last words of names that describe a secret (where it is stored, its format) and are not secret."""
_HOW_MANY_OR_NONE: Final = _set("num n max min no without skip disable has is total")
_TRAILING: Final = _set("value val str string b64 base64 hex plain plaintext raw")

_HARMLESS_BEFORE: Final[dict[str, frozenset[str]]] = {
    "key": _set(
        "image images img text label labels input inputs output outputs target targets source src dst prompt response completion "
        "chosen rejected question answer sort sorting group dataset data datum batch column col row feature features field loss "
        "metric metrics monitor primary foreign unique index cache dict state query value head heads attention attn kv cross lora "
        "adapter module param parameter parameters weight weights layer block class category caption audio video mask sample "
        "sequence example instruction chat message messages content shuffle partition split random rng prng seed hash step time "
        "date order compare best score reward objective plot legend item node edge graph object camera bbox lookup join search "
        "scale noise latent condition conditioning cond embedding embed prefix suffix first last next previous prev rank top "
        "optimizer scheduler lr checkpoint ckpt vae unet num x y z hot frame"
    ),
    "token": _set(
        "pad padding eos bos unk sep cls mask image img video audio speech vision special new extra start stop end begin first "
        "last next prev previous class register dist distillation prefix suffix sos blank placeholder trigger trainable tool think "
        "instance soft prompt query text input output target source word sub byte char per mean average avg sum loss assistant "
        "system eot eom fim middle newline space delimiter separator control latent semantic acoustic motion action time region "
        "patch visual global local null empty dummy concept initializer init initial learned learnable memory mem sink lang "
        "language forced decoder encoder object box point answer question response reasoning pause mixed role turn boi eoi boa eoa "
        "bov eov head with"
    ),
    "pass": _set(
        "forward backward low high band first second third single two multi one all per each next last final full by compile test "
        "dry train eval the"
    ),
    "pw": _set("dw"),
}


@functools.lru_cache(maxsize=1024)  # a long text repeats the same names
def secrecy(name: str) -> Secrecy | None:
    """Return how certainly a setting of this name is a secret; None if it is not. In ``a.b/c``, c counts, and a certain a
    or b."""
    parts = [words for part in re.split(r"[./]", name[-200:]) if (words := _words(part))]
    while len(parts) > 1 and _TRAILING.issuperset(parts[-1]):
        del parts[-1]  # password.value
    if not parts:
        return None
    words = parts[-1]
    while len(words) > 1 and (words[-1].isdigit() or (words[-1] in _TRAILING and words[-2] != "key")):
        del words[-1]  # password2, token_value
    if words[-1] in _NOT_ITSELF or words[0] in _HOW_MANY_OR_NONE:
        return None
    everything = [word for part in parts for word in part]
    if not _ALWAYS.isdisjoint(everything):
        return "certain"
    pairs = set(itertools.pairwise(everything))
    for kind in ("key", "token", "pass", "auth"):
        if any(second == kind and first in _OF_A_SERVICE for first, second in pairs):
            return "certain"
        if any(second == f"{kind}s" and first in _OF_A_SERVICE for first, second in pairs):
            return "likely"  # or a number of them
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last not in _AT_THE_END or before in _HARMLESS_BEFORE.get(last, ()):
        return None
    return "certain" if last in ("pw", "pwd") else "likely"


def _words(name: str) -> list[str]:
    """Split a name into lower-case words, fused ones included: ``hftoken``, ``dbpassword``."""
    words: list[str] = []
    for found in _WORD.findall(name):
        word = found.lower()
        fused = None if word in _ALWAYS else _FUSED.fullmatch(word)
        words += [part for part in fused.groups() if part] if fused else [word]
    return words
