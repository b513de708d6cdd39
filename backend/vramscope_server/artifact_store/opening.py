"""Opens the store of artifacts that the settings name."""

from __future__ import annotations

from vramscope_server.artifact_store.bucket_store import BucketStore
from vramscope_server.artifact_store.folder import FolderStore
from vramscope_server.artifact_store.store import ArtifactsRefused, ArtifactStore
from vramscope_server.settings import Settings
from vramscope_server.store.database import Database
from vramscope_server.store.database_id import find_database_id, make_database_id


def open_artifacts(settings: Settings, database: Database) -> ArtifactStore:
    """The store of a database. Raises ArtifactsRefused."""
    if settings.artifacts is None:
        return FolderStore(settings.snapshots_dir, is_shared=database.kind == "postgresql")
    return BucketStore.open(
        settings.artifacts,
        settings.snapshots_dir,
        _identifier(database),
        lambda: database.number,
        cache_bytes=settings.artifacts_cache_bytes,
    )


def _identifier(database: Database) -> str:
    with database.reader() as connection:
        found = find_database_id(connection)
    if found is not None:
        return found
    if database.read_only is not None:
        raise ArtifactsRefused("the database is read-only, and has never had a bucket. Unset VRAMSCOPE_ARTIFACTS.")
    with database.writer() as connection:
        made = make_database_id(connection)
        connection.commit()
    return made
