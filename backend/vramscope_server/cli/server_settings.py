"""Settings of the server, for commands that work on its database."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.settings import Settings


def server_settings(database: str | None, data_dir: Path | None) -> tuple[Settings, URL]:
    """Settings as the server has them, and the URL of its database. Arguments that are None come from the environment.

    Raises Failure for invalid ones, and if the database is an SQLite file that does not exist.
    """
    given = {"database": database, "data_dir": data_dir}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        url = make_url(settings.database_url)
    except (ValidationError, ArgumentError) as error:
        raise Failure(f"the settings of the server cannot be used: {error}", BAD_ARGUMENTS) from None
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise Failure(f"there is no database at {url.database}; vramscope server makes one", BAD_ARGUMENTS)
    return settings, url
