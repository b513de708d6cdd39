"""Objects under a prefix of a bucket, in any store that speaks the protocol of S3.

Credentials, endpoint and region come from the usual variables ``AWS_...``, as obstore reads them.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from vramscope_server.artifact_store.store import ArtifactsUnreachable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

CLIENT: Final[ClientConfig] = {"connect_timeout": "5s", "timeout": "60s"}
"""Limits of one request. A request has at most CHUNK_BYTES."""
RETRIES: Final[RetryConfig] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=3), "base": 2},
}
CHUNK_BYTES: Final = 8 << 20
"""Size of the parts in which a large object is read and written."""
TROUBLE_SECONDS: Final = 120.0
"""Time in which a failed request counts as trouble."""
FAILING_SECONDS: Final = 5.0
"""Time after a failed request in which :meth:`Bucket.refuse_while_failing` refuses."""
AT_ONCE: Final = 4
"""Number of parts that are read or written at the same time."""


class StoredObject(NamedTuple):
    """An object of a listing."""

    name: str
    bytes: int
    written_seconds: float
    """Time of the store's own clock, since 1970."""


class Bucket:
    """Objects by their name below the prefix. Any thread may call it. Methods raise ArtifactsUnreachable."""

    def __init__(self, url: str) -> None:
        """``url``: ``s3://BUCKET/PREFIX``. Nothing is requested yet. Raises ArtifactsUnreachable for wrong variables."""
        import obstore

        self.url = url
        self._failed: tuple[float, str] | None = None
        self._obstore = obstore
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        client: ClientConfig = {**CLIENT, "allow_http": endpoint.startswith("http://")}
        with self._reaching():
            self._store = obstore.store.S3Store(
                parts.netloc, prefix=prefix or None, client_options=client, retry_config=RETRIES
            )

    @property
    def trouble(self) -> str | None:
        """Why the last request failed; None if it succeeded, or was made long ago."""
        return self._failed_within(TROUBLE_SECONDS)

    def refuse_while_failing(self) -> None:
        """Raise ArtifactsUnreachable if the last request failed a moment ago.

        A store that hangs needs minutes for an answer. Callers that waited for each other need not ask it in turn.
        """
        reason = self._failed_within(FAILING_SECONDS)
        if reason is not None:
            raise ArtifactsUnreachable(reason)

    def _failed_within(self, seconds: float) -> str | None:
        failed = self._failed
        return failed[1] if failed is not None and time.monotonic() - failed[0] < seconds else None

    def put(self, name: str, data: bytes) -> None:
        """Write a small object."""
        with self._reaching():
            self._obstore.put(self._store, name, data, use_multipart=False)

    def put_file(self, name: str, file: Path) -> None:
        """Write an object of any size. It appears once it is complete."""
        with self._reaching():
            self._obstore.put(self._store, name, file, chunk_size=CHUNK_BYTES, max_concurrency=AT_ONCE)

    def put_folder(self, name: str, folder: Path) -> None:
        """Write the files of a folder as one object, a tar file. It appears once it is complete."""
        with self._reaching():
            writer = self._obstore.open_writer(self._store, name, buffer_size=CHUNK_BYTES, max_concurrency=AT_ONCE)
            with writer, tarfile.open(fileobj=writer, mode="w|", bufsize=1 << 20) as tar:
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        tar.add(path, path.relative_to(folder).as_posix(), recursive=False)

    def get(self, name: str) -> bytes | None:
        """Content of a small object; None if there is none."""
        with self._reaching():
            try:
                return bytes(self._obstore.get(self._store, name).bytes())
            except FileNotFoundError as error:
                if _is_bucket_missing(error):
                    raise
                return None

    def get_all(self, names: Sequence[str]) -> Iterator[bytes]:
        """Contents of small objects in this order; some are requested ahead. Raises ArtifactsUnreachable for a missing one."""

        def content(name: str) -> bytes:
            data = self.get(name)
            if data is None:
                raise ArtifactsUnreachable(f"{self.url}/{name} is missing")
            return data

        with ThreadPoolExecutor(AT_ONCE) as pool:
            ahead: deque[Future[bytes]] = deque()
            for name in names:
                ahead.append(pool.submit(content, name))
                if len(ahead) > AT_ONCE:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def get_large(self, name: str, bytes_: int) -> Iterator[bytes]:
        """Content of an object of a known size, in chunks."""
        for start in range(0, bytes_, CHUNK_BYTES):
            with self._reaching():
                end = min(start + CHUNK_BYTES, bytes_)
                data = bytes(self._obstore.get_range(self._store, name, start=start, end=end))
            yield data

    def get_folder(self, name: str, target: Path, check: Callable[[int], None] = lambda bytes_: None) -> bool:
        """Read an object that :meth:`put_folder` wrote into an empty folder. False: there is none.

        ``check`` is called with its size before anything is written. Raises ArtifactsUnreachable also if it is damaged, and
        OSError if the files cannot be written.
        """
        with self._reaching():
            try:
                reader = self._obstore.open_reader(self._store, name, buffer_size=CHUNK_BYTES)
            except FileNotFoundError as error:
                if _is_bucket_missing(error):
                    raise
                return False
            size_bytes = int(reader.size)
        check(size_bytes)
        try:
            with tarfile.open(fileobj=_Reader(reader, self._reaching), mode="r|", bufsize=1 << 20) as tar:  # type: ignore[call-overload]
                for member in tar:
                    _extract(tar, member, target)
        except (tarfile.TarError, EOFError) as error:
            raise ArtifactsUnreachable(f"{self.url}/{name} is damaged: {error}") from None
        return True

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, as far as they are there."""
        given = list(names)
        if given:
            with self._reaching():
                self._obstore.delete(self._store, given)

    def list(self, folder: str, after: str | None = None) -> list[StoredObject]:
        """Objects below a folder by name; with ``after`` only those whose name is greater."""
        with self._reaching():
            found = [one for chunk in self._obstore.list(self._store, folder, offset=after) for one in chunk]
        return sorted(StoredObject(one["path"], one["size"], one["last_modified"].timestamp()) for one in found)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn errors of the library into ArtifactsUnreachable, and keep the last one."""
        try:
            yield
        except ArtifactsUnreachable:
            raise
        except (self._obstore.exceptions.BaseError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of this machine's disk
            reason = f"{self.url} cannot be used: {reason_of(error)}"
            self._failed = time.monotonic(), reason
            raise ArtifactsUnreachable(reason) from None
        self._failed = None


class _Reader:
    """Reader for ``tarfile``, which wants bytes."""

    def __init__(self, reader: Any, reaching: Any) -> None:
        self._reader = reader
        self._reaching = reaching

    def read(self, size: int) -> bytes:
        with self._reaching():
            return bytes(self._reader.read(size))


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write a file of a tar file. Raises TarError for everything but a plain file inside the folder."""
    name = PurePosixPath(member.name)
    source = tar.extractfile(member) if member.isfile() else None
    if source is None or name.is_absolute() or ".." in name.parts:
        raise tarfile.ExtractError(f"{member.name[:80]!r} is no file of the folder")
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        while data := source.read(1 << 20):
            file.write(data)


def _is_bucket_missing(error: FileNotFoundError) -> bool:
    return "NoSuchBucket" in str(error)


def reason_of(error: BaseException) -> str:
    """Why a request failed, in one line: the code of the store's answer, else the end of the library's first line."""
    text = str(error)
    if code := re.search(r"<Code>(\w{1,60})</Code>", text):
        return code.group(1)
    status = re.search(r"status code: (\d{3} [\w ]{0,40})", text)
    line = text.partition("\n")[0]
    return status.group(1).strip() if status else line.rpartition(" - ")[2][:200].rstrip(".:")
