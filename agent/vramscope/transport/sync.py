"""``vramscope sync``: sends what waits in the spool folder, for runs whose process is gone.

Exit codes: 0 all sent, or nothing to do; 1 something was not accepted and stays; 2 the words were wrong; 4 no server.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from vramscope.protocol import messages as wire_messages
from vramscope.settings import Settings
from vramscope.transport import batching
from vramscope.transport.http import ServerAnswer, ServerConnection
from vramscope.transport.spool_dir import ATTACHED, SessionFolder, WaitingBatch, on_disk, session_folders

DONE: Final = 0
NOT_ACCEPTED: Final = 1
WRONG_WORDS: Final = 2
NO_SERVER: Final = 4

PATIENCE_S: Final = 60.0
"""How long a server that asks for patience gets, before it counts as away."""

KIB: Final = 1024

CUT_OFF: Final = 1 << 40
"""Far above the numbers of any session: what was cut off a batch gets one of these, and the rest keeps its own."""

PROGRESS_AFTER_S: Final = 2.0
BAR_CHARACTERS: Final = 30


class SyncResult(msgspec.Struct, kw_only=True):
    """What one sync did; the answer of ``--json``."""

    directory: str
    servers: list[str] = []
    sessions: int = 0
    sent_to: list[str] = []
    """of the servers, those that took something"""
    sent_sessions: int = 0
    sent_batches: int = 0
    sent_bytes: int = 0
    set_aside_batches: int = 0
    """never accepted; they lie in the session's folder refused/"""
    broken_files: int = 0
    """cut short by a crash, and ignored"""
    left_batches: int = 0
    left_sessions: int = 0
    in_use_sessions: int = 0
    """their own process, or another sync, is sending them"""
    problems: list[str] = []


def main(argv: Sequence[str]) -> int:
    """Run the command with the words after ``sync``; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="vramscope sync", description="Send what was kept on disk while the server was away."
    )
    parser.add_argument("--server", help="send everything there, instead of where each run was meant to go")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    try:
        words = parser.parse_args(argv)
    except SystemExit as end:  # argparse ends the process; we are called as a function
        return int(end.code or 0)
    try:
        settings = Settings.from_environment(server=words.server)
    except ValueError as fault:
        print(f"vramscope sync: {fault}", file=sys.stderr)
        return WRONG_WORDS
    tally = SyncResult(directory=str(settings.spool_dir))
    state = Sync(settings, tally, to_one_server=words.server is not None).run()
    if words.json:
        print(json.dumps({"exit_code": state, **msgspec.structs.asdict(tally)}, indent=2))
    else:
        for line in _story(tally, elsewhere=state == NO_SERVER and words.server is None):
            print(line)
    for problem in tally.problems:
        print(f"vramscope sync: {problem}", file=sys.stderr)
    return state


class Sync:
    """One pass over the spool folder, oldest session first, each in its order."""

    def __init__(self, settings: Settings, tally: SyncResult, *, to_one_server: bool) -> None:
        self._settings = settings
        self._tally = tally
        self._to_one_server = to_one_server
        self._deliveries: dict[str, ServerConnection] = {}
        self._lost: set[str] = set()  # servers that take nothing now
        self._state = DONE

    def run(self) -> int:
        """Send what can be sent; gives the exit code."""
        folders = []
        for folder in session_folders(self._settings.spool_dir):
            if folder.lock():
                folders.append((folder, folder.batches()))
            elif folder.path.exists():
                self._tally.in_use_sessions += 1
        progress = ProgressBar(sum(len(waiting) for _, waiting in folders))
        try:
            for folder, waiting in folders:
                self._tally.sessions += bool(waiting)
                self._send_session(folder, waiting, progress)
        finally:
            progress.end()
            for delivery in self._deliveries.values():
                delivery.close()
            for folder, _ in folders:
                folder.tidy()
                folder.unlock()
        return self._state

    def _send_session(self, folder: SessionFolder, waiting: Sequence[WaitingBatch], progress: ProgressBar) -> None:
        delivery = self._delivery_for(folder)
        sent_before, left_before = self._tally.sent_batches, self._tally.left_batches
        attached = _attached(folder.path)
        introduce = attached is not None  # this server may never have heard of the session
        left = deque(waiting)
        while left:
            kept = left.popleft()
            progress.show(max(0, len(waiting) - len(left)))
            if delivery.server in self._lost:
                self._tally.left_batches += 1 + len(left)
                break
            body = folder.read_batch(kept)
            if body is None:
                continue
            answer = self._patiently(delivery, batching.introduced(body, attached) if attached and introduce else body)
            if answer.outcome == "unknown_session" and attached:
                answer = self._patiently(delivery, batching.introduced(body, attached))
            introduce = introduce and answer.outcome != "stored"
            halves = self._cut(folder, kept, body) if answer.outcome == "too_large" else None
            if halves is None:
                self._settle(folder, kept, body, answer, delivery.server)
            else:
                left.extendleft(reversed(halves))
        if self._tally.sent_batches > sent_before:
            self._tally.sent_sessions += 1
            if delivery.server not in self._tally.sent_to:
                self._tally.sent_to.append(delivery.server)
        self._tally.left_sessions += self._tally.left_batches > left_before
        self._tally.broken_files += folder.broken_files
        progress.done += len(waiting)

    def _settle(
        self, folder: SessionFolder, kept: WaitingBatch, body: bytes, answer: ServerAnswer, server: str
    ) -> None:
        if answer.outcome == "stored":
            folder.remove_batch(kept)
            self._tally.sent_batches += 1
            self._tally.sent_bytes += len(body)
        elif answer.outcome in ("away", "busy", "refused"):
            self._lost.add(server)
            self._tally.left_batches += 1
            self._tally.problems.append(answer.text)
            self._state = NOT_ACCEPTED if answer.outcome == "refused" and self._state == DONE else self._state
            self._state = NO_SERVER if answer.outcome != "refused" else self._state
        else:
            folder.set_aside(kept, body, answer.text)
            folder.remove_batch(kept)
            self._tally.set_aside_batches += 1
            if answer.text not in self._tally.problems:
                self._tally.problems.append(answer.text)
            self._state = self._state or NOT_ACCEPTED

    def _cut(self, folder: SessionFolder, kept: WaitingBatch, body: bytes) -> Sequence[WaitingBatch] | None:
        """What takes the batch's place; None where it cannot be cut, nothing where the disk takes no halves now."""
        try:
            return _cut_on_disk(folder, kept, body)
        except OSError as fault:
            self._tally.left_batches += 1
            self._tally.problems.append(f"a batch that is too large could not be cut in two: {fault}")
            self._state = self._state or NOT_ACCEPTED
            return ()

    def _patiently(self, delivery: ServerConnection, body: bytes) -> ServerAnswer:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            answer = delivery.post(body)
            pause_s = answer.retry_after_s or 1.0
            if answer.ack is not None and answer.ack.retry_after_ms > 0:
                time.sleep(min(answer.ack.retry_after_ms / 1000, PATIENCE_S))
            if answer.outcome != "busy" or time.monotonic() + pause_s > until_s:
                return answer
            time.sleep(pause_s)

    def _delivery_for(self, folder: SessionFolder) -> ServerConnection:
        meant = folder.meant()
        theirs = "" if meant is None or self._to_one_server else meant.server  # "" too where it could not be read
        server = theirs or self._settings.server
        if server not in self._deliveries:
            self._tally.servers.append(server)
            self._deliveries[server] = ServerConnection(
                server,
                self._settings.token,
                connect_timeout_s=self._settings.connect_timeout_s,
                read_timeout_s=self._settings.read_timeout_s,
            )
        return self._deliveries[server]


class ProgressBar:
    """A bar on stderr, for somebody who waits at a terminal for more than two seconds."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._started_s = time.monotonic()
        self._shown_s = 0.0

    def show(self, more: int) -> None:
        """Draw it anew, a few times a second at most."""
        now = time.monotonic()
        if now < self._started_s + PROGRESS_AFTER_S or now < self._shown_s + 0.2 or not sys.stderr.isatty():
            return
        self._shown_s = now
        share = (self.done + more) / max(self.total, 1)
        bar = "#" * int(share * BAR_CHARACTERS)
        print(
            f"\r[{bar:<{BAR_CHARACTERS}}] {self.done + more} of {self.total} batches",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Leave the bar's line."""
        if self._shown_s:
            print(file=sys.stderr)


def _cut_on_disk(folder: SessionFolder, kept: WaitingBatch, body: bytes) -> tuple[WaitingBatch, WaitingBatch] | None:
    """A waiting batch as two smaller ones, in its place; None where it cannot be cut. Raises OSError with the whole in place.

    The second half is numbered by where it stood in the batch. So a sync that is killed in here and begins anew cuts the
    same halves under the same numbers, and the server knows its twins.
    """
    messages = batching.split(body)
    if messages is None:
        return None
    batch = wire_messages.decode_batch(body)
    before = sum(
        message.rows if isinstance(message, wire_messages.Block | wire_messages.Scalars) else 1
        for message in messages[0]
    )
    halves = []
    for number, half in zip((kept.sequence, kept.sequence + before * CUT_OFF), messages, strict=True):
        content = batching.encode(batching.loaded(msgspec.structs.replace(batch, sequence=number), half))
        halves.append((WaitingBatch(number, batching.rows_in(half), on_disk(len(content))), content))
    for half_kept, content in reversed(halves):  # the second first: until it lies there, the whole must stay
        folder.write_batch(half_kept, content)
    if halves[0][0].rows != kept.rows:  # else the first half has taken the place of the whole
        folder.remove_batch(kept)
    return halves[0][0], halves[1][0]


def _attached(path: Path) -> bytes | None:
    """The Attached message that the session's process left beside its batches, if it is whole."""
    try:
        content = (path / ATTACHED).read_bytes()
        msgspec.msgpack.decode(content)
    except (OSError, msgspec.MsgspecError):
        return None
    return content


def _story(tally: SyncResult, *, elsewhere: bool) -> list[str]:
    """``elsewhere``: a server was away, and another one may be named."""
    lines = []
    if tally.sessions == 0:
        lines.append(f"Nothing to send in {tally.directory}.")
    elif tally.sent_batches:
        size = tally.sent_bytes / KIB
        amount = f"{size:.1f} KiB" if size < KIB else f"{size / KIB:.1f} MiB"
        what = f"{_some(tally.sent_batches, 'batch', 'batches')} ({amount}) of {_some(tally.sent_sessions, 'session')}"
        lines.append(f"Sent {what} to {', '.join(tally.sent_to)}.")
    else:
        lines.append("Sent nothing.")
    if tally.left_batches:
        stay = f"{_some(tally.left_batches, 'batch', 'batches')} of {_some(tally.left_sessions, 'session')}"
        hint = "; `vramscope sync --server URL` sends everything to another server" if elsewhere else ""
        lines.append(f"What stays in {tally.directory}: {stay}{hint}.")
    if tally.set_aside_batches:
        aside = _some(tally.set_aside_batches, "batch", "batches")
        lines.append(f"Not accepted, and set aside in {tally.directory}: {aside}.")
    if tally.broken_files:
        lines.append(f"Cut short by a crash, and ignored: {_some(tally.broken_files, 'file')}.")
    if tally.in_use_sessions:
        lines.append(f"Being sent by another process: {_some(tally.in_use_sessions, 'session')}.")
    return lines


def _some(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
