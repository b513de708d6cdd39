"""``vramscope sync``: sends the batches in the spool folder, for runs whose process has ended.

Exit codes: 0 everything sent or nothing to do; 1 something was not accepted and stays; 2 wrong arguments; 4 no server.

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

from vramscope.protocol import messages
from vramscope.protocol.number_format import amount
from vramscope.settings import Settings
from vramscope.transport import batching
from vramscope.transport.http import ServerAnswer, ServerConnection
from vramscope.transport.spool_dir import ATTACHED, SessionFolder, WaitingBatch, on_disk, session_folders

DONE: Final = 0
NOT_ACCEPTED: Final = 1
WRONG_ARGUMENTS: Final = 2
NO_SERVER: Final = 4

PATIENCE_S: Final = 60.0
"""Time that a busy server gets before it counts as away."""


SECOND_HALF: Final = 1 << 40
"""Factor far above the numbers of any session. The second half of a batch gets such a number, the first half keeps its own."""

PROGRESS_AFTER_S: Final = 2.0
BAR_CHARACTERS: Final = 30


class SyncResult(msgspec.Struct, kw_only=True):
    """Result of one sync, as ``--json`` prints it."""

    directory: str
    servers: list[str] = []
    sessions: int = 0
    sent_to: list[str] = []
    """The servers that accepted something."""
    sent_sessions: int = 0
    sent_batches: int = 0
    sent_bytes: int = 0
    set_aside_batches: int = 0
    """Number of refused batches; they are in the session's folder refused/."""
    broken_files: int = 0
    """Number of files that were cut short by a crash, and ignored."""
    left_batches: int = 0
    left_sessions: int = 0
    in_use_sessions: int = 0
    """Number of sessions that their own process, or another sync, is sending."""
    problems: list[str] = []


def main(argv: Sequence[str]) -> int:
    """Run the command with the arguments after ``sync``. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="vramscope sync", description="Send data that trainings stored on disk while no server answered."
    )
    parser.add_argument("--server", help="send everything to this server instead of the server of each run")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    try:
        words = parser.parse_args(argv)
    except SystemExit as end:  # argparse ends the process; we are called as a function
        return int(end.code or 0)
    try:
        settings = Settings.from_environment(server=words.server)
    except ValueError as fault:
        print(f"vramscope sync: {fault}", file=sys.stderr)
        return WRONG_ARGUMENTS
    result = SyncResult(directory=str(settings.spool_dir))
    state = Sync(settings, result, to_one_server=words.server is not None).run()
    if words.json:
        print(json.dumps({"exit_code": state, **msgspec.structs.asdict(result)}, indent=2))
    else:
        for line in _summary(result, elsewhere=state == NO_SERVER and words.server is None):
            print(line)
    for problem in result.problems:
        print(f"vramscope sync: {problem}", file=sys.stderr)
    return state


class Sync:
    """One pass over the spool folder, oldest session first, each in its order."""

    def __init__(self, settings: Settings, result: SyncResult, *, to_one_server: bool) -> None:
        self._settings = settings
        self._result = result
        self._to_one_server = to_one_server
        self._connections: dict[str, ServerConnection] = {}
        self._lost: set[str] = set()  # servers that accept nothing now
        self._state = DONE

    def run(self) -> int:
        """Send what can be sent. Returns the exit code."""
        folders = []
        for folder in session_folders(self._settings.spool_dir):
            if folder.lock():
                folders.append((folder, folder.batches()))
            elif folder.path.exists():
                self._result.in_use_sessions += 1
        progress = ProgressBar(sum(len(waiting) for _, waiting in folders))
        try:
            for folder, waiting in folders:
                self._result.sessions += bool(waiting)
                self._send_session(folder, waiting, progress)
        finally:
            progress.end()
            for connection in self._connections.values():
                connection.close()
            for folder, _ in folders:
                folder.tidy()
                folder.unlock()
        return self._state

    def _send_session(self, folder: SessionFolder, waiting: Sequence[WaitingBatch], progress: ProgressBar) -> None:
        connection = self._connection_for(folder)
        sent_before, left_before = self._result.sent_batches, self._result.left_batches
        attached = _attached(folder.path)
        introduce = attached is not None  # this server may not know the session
        left = deque(waiting)
        while left:
            entry = left.popleft()
            progress.show(max(0, len(waiting) - len(left)))
            if connection.server in self._lost:
                self._result.left_batches += 1 + len(left)
                break
            body = folder.read_batch(entry)
            if body is None:
                continue
            answer = self._post_patiently(
                connection, batching.with_attached(body, attached) if attached and introduce else body
            )
            if answer.outcome == "unknown_session" and attached:
                answer = self._post_patiently(connection, batching.with_attached(body, attached))
            introduce = introduce and answer.outcome != "stored"
            halves = self._split(folder, entry, body) if answer.outcome == "too_large" else None
            if halves is not None:
                left.extendleft(reversed(halves))
                continue
            self._settle(folder, entry, body, answer.to_single_row(), connection.server)
            if answer.of_session:
                self._result.left_batches += len(left)
                break
        if self._result.sent_batches > sent_before:
            self._result.sent_sessions += 1
            if connection.server not in self._result.sent_to:
                self._result.sent_to.append(connection.server)
        self._result.left_sessions += self._result.left_batches > left_before
        self._result.broken_files += folder.broken_files
        progress.done += len(waiting)

    def _settle(
        self, folder: SessionFolder, entry: WaitingBatch, body: bytes, answer: ServerAnswer, server: str
    ) -> None:
        if answer.outcome == "stored":
            folder.remove_batch(entry)
            self._result.sent_batches += 1
            self._result.sent_bytes += len(body)
        elif answer.outcome in ("away", "busy", "refused"):
            if not answer.of_session:
                self._lost.add(server)
            self._result.left_batches += 1
            if answer.text not in self._result.problems:
                self._result.problems.append(answer.text)
            self._state = NOT_ACCEPTED if answer.outcome == "refused" and self._state == DONE else self._state
            self._state = NO_SERVER if answer.outcome != "refused" else self._state
        else:
            folder.set_aside(entry, body, answer.text)
            folder.remove_batch(entry)
            self._result.set_aside_batches += 1
            if answer.text not in self._result.problems:
                self._result.problems.append(answer.text)
            self._state = self._state or NOT_ACCEPTED

    def _split(self, folder: SessionFolder, entry: WaitingBatch, body: bytes) -> Sequence[WaitingBatch] | None:
        """Replace a batch by its halves. None if it cannot be split; () if the disk cannot take the halves now."""
        try:
            return _split_on_disk(folder, entry, body)
        except OSError as fault:
            self._result.left_batches += 1
            self._result.problems.append(f"a batch is too large and could not be split: {fault}")
            self._state = self._state or NOT_ACCEPTED
            return ()

    def _post_patiently(self, connection: ServerConnection, body: bytes) -> ServerAnswer:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            answer = connection.post(body)
            pause_s = answer.retry_after_s or 1.0
            if answer.ack is not None and answer.ack.retry_after_ms > 0:
                time.sleep(min(answer.ack.retry_after_ms / 1000, PATIENCE_S))
            if answer.outcome != "busy" or time.monotonic() + pause_s > until_s:
                return answer
            time.sleep(pause_s)

    def _connection_for(self, folder: SessionFolder) -> ServerConnection:
        session = folder.read_session()
        own_server = "" if session is None or self._to_one_server else session.server  # "" too if it could not be read
        server = own_server or self._settings.server
        if server not in self._connections:
            self._result.servers.append(server)
            self._connections[server] = ServerConnection(
                server,
                self._settings.token,
                connect_timeout_s=self._settings.connect_timeout_s,
                read_timeout_s=self._settings.read_timeout_s,
            )
        return self._connections[server]


class ProgressBar:
    """A progress bar on stderr, shown on a terminal after two seconds."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._started_s = time.monotonic()
        self._shown_s = 0.0

    def show(self, more: int) -> None:
        """Draw the bar, at most five times a second."""
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


def _split_on_disk(folder: SessionFolder, entry: WaitingBatch, body: bytes) -> tuple[WaitingBatch, WaitingBatch] | None:
    """Replace a waiting batch by two smaller ones. None if it cannot be split. Raises OSError with the whole batch in
    place.

    The number of the second half follows from its position in the batch. So a sync that is killed here and repeated makes
    the same halves under the same numbers, and the server recognises duplicates.

    """
    items = batching.split(body)
    if items is None:
        return None
    batch = messages.decode_batch(body)
    before = sum(message.rows if isinstance(message, messages.Block | messages.Scalars) else 1 for message in items[0])
    halves = []
    for number, half in zip((entry.sequence, entry.sequence + before * SECOND_HALF), items, strict=True):
        content = batching.encode(batching.with_items(msgspec.structs.replace(batch, sequence=number), half))
        halves.append((WaitingBatch(number, batching.rows_in(half), on_disk(len(content))), content))
    for half_kept, content in reversed(halves):  # the second first: until it is written, the whole batch must stay
        folder.write_batch(half_kept, content)
    if halves[0][0].rows != entry.rows:  # else the first half has replaced the whole batch
        folder.remove_batch(entry)
    return halves[0][0], halves[1][0]


def _attached(path: Path) -> bytes | None:
    """Read the Attached message that the session's process left beside its batches; None if it is missing or damaged."""
    try:
        content = (path / ATTACHED).read_bytes()
        msgspec.msgpack.decode(content)
    except (OSError, msgspec.MsgspecError):
        return None
    return content


def _summary(result: SyncResult, *, elsewhere: bool) -> list[str]:
    """Summarise the result in sentences. ``elsewhere``: a server did not answer, and another one can be named."""
    lines = []
    if result.sessions == 0:
        lines.append(f"Nothing to send in {result.directory}.")
    elif result.sent_batches:
        batches, sessions = _count(result.sent_batches, "batch", "batches"), _count(result.sent_sessions, "session")
        what = f"{batches} ({amount(result.sent_bytes)}) of {sessions}"
        lines.append(f"Sent {what} to {', '.join(result.sent_to)}.")
    else:
        lines.append("Sent nothing.")
    if result.left_batches:
        stay = f"{_count(result.left_batches, 'batch', 'batches')} of {_count(result.left_sessions, 'session')}"
        hint = "; `vramscope sync --server URL` sends everything to another server" if elsewhere else ""
        lines.append(f"Still in {result.directory}: {stay}{hint}.")
    if result.set_aside_batches:
        aside = _count(result.set_aside_batches, "batch", "batches")
        lines.append(f"Refused and set aside in {result.directory}: {aside}.")
    if result.broken_files:
        lines.append(f"Ignored, since cut short by a crash: {_count(result.broken_files, 'file')}.")
    if result.in_use_sessions:
        lines.append(f"Being sent by another process: {_count(result.in_use_sessions, 'session')}.")
    return lines


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
